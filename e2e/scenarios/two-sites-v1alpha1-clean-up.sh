# Removes what two-sites-v1alpha1.sh made.
# namespaces: demo-west demo-east
set -eu

kubectl delete --namespace demo-east accesstoken/to-west
kubectl delete --namespace demo-west accessgrant/for-east
for site in west east; do
    kubectl delete --namespace "demo-$site" "routeraccess/$site-door" "site/$site"
done
