# Removes what two-sites.sh made.
# namespaces: demo-west demo-east
set -eu

kubectl --namespace demo-east delete accesstoken/to-west site/east
kubectl --namespace demo-west delete accessgrant/for-east site/west
