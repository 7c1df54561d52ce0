# The same two sites as in two-sites.sh, written as Skupper's first version 2 preview had it.
# namespaces: demo-west demo-east
set -eu

for site in west east; do
    kubectl apply --namespace "demo-$site" --filename - <<EOF
apiVersion: skupper.io/v1alpha1
kind: Site
metadata:
  name: $site
spec:
  routerMode: interior
---
apiVersion: skupper.io/v1alpha1
kind: RouterAccess
metadata:
  name: $site-door
spec:
  roles:
    - name: inter-router
      port: 55671
  issuer: skupper-site-ca
  generateTlsCredentials: true
  tlsCredentials: $site-door
EOF
done

kubectl apply --namespace demo-west --filename - <<EOF
apiVersion: skupper.io/v1alpha1
kind: AccessGrant
metadata:
  name: for-east
spec:
  redemptionsAllowed: 3
  expirationWindow: 15m
EOF
kubectl wait --namespace demo-west --for condition=Ready accessgrant/for-east --timeout 60s
kubectl get --namespace demo-west accessgrant/for-east --output json | yq '{
  apiVersion: "skupper.io/v1alpha1",
  kind: "AccessToken",
  metadata: {name: "to-west"},
  spec: {url: .status.url, code: .status.code, ca: .status.ca}
}' >token-to-west.json
kubectl apply --namespace demo-east --filename token-to-west.json
kubectl wait --namespace demo-east --for condition=Redeemed accesstoken/to-west --timeout 60s
rm token-to-west.json
