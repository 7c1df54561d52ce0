# The same two sites as in two-sites.sh, written as Skupper's first version 2 preview had it.
# namespaces: demo-west demo-east
set -eu
: "${NS_PREFIX:=demo}"

for site in west east; do
    kubectl apply --namespace "$NS_PREFIX-$site" --filename - <<EOF
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

kubectl apply --namespace "$NS_PREFIX-west" --filename - <<EOF
apiVersion: skupper.io/v1alpha1
kind: AccessGrant
metadata:
  name: for-east
spec:
  redemptionsAllowed: 3
  expirationWindow: 15m
EOF
kubectl wait --namespace "$NS_PREFIX-west" --for condition=Ready accessgrant/for-east --timeout 60s
kubectl get --namespace "$NS_PREFIX-west" accessgrant/for-east --output go-template='apiVersion: skupper.io/v1alpha1
kind: AccessToken
metadata:
  name: to-west
spec:
  url: {{printf "%q" .status.url}}
  code: {{printf "%q" .status.code}}
  ca: {{printf "%q" .status.ca}}
' >token-to-west.yaml
kubectl apply --namespace "$NS_PREFIX-east" --filename token-to-west.yaml
kubectl wait --namespace "$NS_PREFIX-east" --for condition=Redeemed accesstoken/to-west --timeout 60s
rm token-to-west.yaml
