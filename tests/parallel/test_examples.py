"""The files in docs/examples are valid: that for Slurm as a script, that for Kubernetes as a Ray cluster."""

import subprocess
from pathlib import Path

import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


def test_the_slurm_script_has_a_correct_syntax():
    file = EXAMPLES / "workers.sbatch"
    subprocess.run(["bash", "-n", file], check=True)
    first, *lines = file.read_text().splitlines()
    assert first == "#!/bin/bash"  # Slurm reads no settings without it
    options = {line.split("=")[0] for line in lines if line.startswith("#SBATCH")}
    assert {"#SBATCH --nodes", "#SBATCH --ntasks-per-node", "#SBATCH --cpus-per-task"} <= options


def test_the_cluster_of_kubernetes_has_the_required_fields():
    cluster = yaml.safe_load((EXAMPLES / "raycluster.yaml").read_text())
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    head, workers = cluster["spec"]["headGroupSpec"], cluster["spec"]["workerGroupSpecs"]
    for group in (head, *workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())  # KubeRay rejects numbers
        pod = group["template"]["spec"]
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        assert {container["image"] for container in pod["containers"]} == {"registry.example.com/ortpipe:latest"}
    assert all(group["minReplicas"] <= group["replicas"] <= group["maxReplicas"] for group in workers)
    assert all(group["groupName"] for group in workers)
