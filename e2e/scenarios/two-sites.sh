# Two sites, linked by a token that one issues and the other redeems.
# namespaces: demo-west demo-east
set -eu
: "${NS_PREFIX:=demo}"

west() { kubectl --namespace "$NS_PREFIX-west" "$@"; }
east() { kubectl --namespace "$NS_PREFIX-east" "$@"; }

echo "West can be reached, and gives out a token."
west apply --filename - <<EOF
apiVersion: skupper.io/v2alpha1
kind: Site
metadata:
  name: west
spec:
  linkAccess: default
---
apiVersion: skupper.io/v2alpha1
kind: AccessGrant
metadata:
  name: for-east
spec:
  redemptionsAllowed: 1
  expirationWindow: 15m
EOF

echo "East can only call."
east apply --filename - <<EOF
apiVersion: skupper.io/v2alpha1
kind: Site
metadata:
  name: east
EOF

echo "The token goes from west to east, as it would by mail."
west wait --for condition=Ready accessgrant/for-east --timeout 60s
west get accessgrant/for-east --output go-template='apiVersion: skupper.io/v2alpha1
kind: AccessToken
metadata:
  name: to-west
spec:
  url: {{printf "%q" .status.url}}
  code: {{printf "%q" .status.code}}
  ca: {{printf "%q" .status.ca}}
' >token-to-west.yaml
east apply --filename token-to-west.yaml
east wait --for condition=Redeemed accesstoken/to-west --timeout 60s
rm token-to-west.yaml
