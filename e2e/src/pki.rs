//! Who may call whom? A certificate authority of the cluster's own, and a kubeconfig for each caller.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::{Value, json};

use crate::network;

/// The name of the pair that a [`crate::fault_proxy`] shows to who calls it.
pub const FAULT_PROXY: &str = "fault-proxy";

/// The folder that holds a cluster's certificates, keys and kubeconfigs.
#[derive(Clone, Debug)]
pub struct Pki {
    dir: PathBuf,
}

/// The callers of the API server: file name, common name, organisation.
const CALLERS: [(&str, &str, &str); 6] = [
    ("admin", "admin", "system:masters"),
    (
        "kube-controller-manager",
        "system:kube-controller-manager",
        "",
    ),
    ("kube-scheduler", "system:kube-scheduler", ""),
    ("kube-proxy", "system:kube-proxy", ""),
    ("coredns", "coredns", ""),
    ("kubelet", "system:node:", "system:nodes"),
];

impl Pki {
    /// Makes everything for a cluster whose API server and node are at `address`.
    pub fn create(dir: &Path, address: Ipv4Addr, node: &str) -> Result<Pki> {
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        let pki = Pki {
            dir: dir.to_owned(),
        };
        let authority = authority()?;
        let ca = authority.pem();
        pki.write("ca.crt", &ca)?;

        let server = [
            address.to_string(),
            network::API_SERVICE.to_string(),
            "127.0.0.1".to_owned(),
        ];
        let names = [
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "localhost",
        ];
        let names: Vec<String> = server.into_iter().chain(names.map(str::to_owned)).collect();
        pki.write_pair(
            "apiserver",
            &issue(&authority, "kube-apiserver", "", &names)?,
        )?;
        pki.write_pair(
            "kubelet-server",
            &issue(
                &authority,
                node,
                "",
                &[node.to_owned(), address.to_string()],
            )?,
        )?;
        pki.write_pair(
            "apiserver-kubelet",
            &issue(&authority, "kube-apiserver", "system:masters", &[])?,
        )?;
        let machine = [Ipv4Addr::LOCALHOST, network::MACHINE].map(|address| address.to_string());
        pki.write_pair(FAULT_PROXY, &issue(&authority, FAULT_PROXY, "", &machine)?)?;
        let tokens = KeyPair::generate()?;
        pki.write("service-account.key", &tokens.serialize_pem())?;
        pki.write("service-account.pub", &tokens.public_key_pem())?;

        for (file, name, organisation) in CALLERS {
            let name = if file == "kubelet" {
                format!("{name}{node}")
            } else {
                name.to_owned()
            };
            let pair = issue(&authority, &name, organisation, &[])?;
            pki.write(
                &format!("{file}.kubeconfig"),
                &kubeconfig((address, network::API_PORT).into(), &ca, &pair)?,
            )?;
            pki.write_pair(file, &pair)?;
        }
        Ok(pki)
    }

    /// A file's path, e.g. `ca.crt` or `admin.kubeconfig`.
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// A flag that names a file: `--client-ca-file=/…/ca.crt`.
    pub fn flag(&self, flag: &str, file: &str) -> String {
        format!("--{flag}={}", self.path(file).display())
    }

    /// Writes a kubeconfig by which a caller goes to `address` instead of to the API server, and names the file.
    pub fn redirect(&self, caller: &str, address: SocketAddr) -> Result<String> {
        let path = self.path(&format!("{caller}.kubeconfig"));
        let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        let mut config: Value = serde_json::from_slice(&text)?;
        config["clusters"][0]["cluster"]["server"] = server(address).into();
        let file = format!("{caller}-redirected.kubeconfig");
        self.write(&file, &serde_json::to_string_pretty(&config)?)?;
        Ok(file)
    }

    fn write_pair(&self, name: &str, pair: &Pair) -> Result<()> {
        self.write(&format!("{name}.crt"), &pair.certificate)?;
        self.write(&format!("{name}.key"), &pair.key)
    }

    fn write(&self, file: &str, content: &str) -> Result<()> {
        let path = self.path(file);
        std::fs::write(&path, content).with_context(|| format!("write {}", path.display()))
    }
}

struct Pair {
    certificate: String,
    key: String,
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Result<Authority> {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, "spanwire test cluster");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::DigitalSignature,
    ];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn issue(
    authority: &Authority,
    name: &str,
    organisation: &str,
    alternatives: &[String],
) -> Result<Pair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    if !organisation.is_empty() {
        params
            .distinguished_name
            .push(DnType::OrganizationName, organisation);
    }
    for alternative in alternatives {
        params
            .subject_alt_names
            .push(match alternative.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(alternative.as_str().try_into()?),
            });
    }
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, authority)?.pem();
    Ok(Pair {
        certificate,
        key: key.serialize_pem(),
    })
}

fn kubeconfig(address: SocketAddr, ca: &str, pair: &Pair) -> Result<String> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "spanwire",
        "contexts": [{"name": "spanwire", "context": {"cluster": "spanwire", "user": "spanwire"}}],
        "clusters": [{"name": "spanwire", "cluster": {
            "server": server(address),
            "certificate-authority-data": BASE64.encode(ca),
        }}],
        "users": [{"name": "spanwire", "user": {
            "client-certificate-data": BASE64.encode(&pair.certificate),
            "client-key-data": BASE64.encode(&pair.key),
        }}],
    });
    Ok(serde_json::to_string_pretty(&config)?)
}

fn server(address: SocketAddr) -> String {
    format!("https://{address}")
}
