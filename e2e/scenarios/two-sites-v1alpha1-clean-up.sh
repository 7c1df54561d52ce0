# Removes what two-sites-v1alpha1.sh made.
# namespaces: demo-west demo-east
set -eu
: "${NS_PREFIX:=demo}"

kubectl delete --namespace "$NS_PREFIX-east" accesstoken/to-west
kubectl delete --namespace "$NS_PREFIX-west" accessgrant/for-east
for site in west east; do
    kubectl delete --namespace "$NS_PREFIX-$site" "routeraccess/$site-door" "site/$site"
done
