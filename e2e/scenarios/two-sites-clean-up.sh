# Removes what two-sites.sh made.
# namespaces: demo-west demo-east
set -eu
: "${NS_PREFIX:=demo}"

kubectl --namespace "$NS_PREFIX-east" delete accesstoken/to-west site/east
kubectl --namespace "$NS_PREFIX-west" delete accessgrant/for-east site/west
