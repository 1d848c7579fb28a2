from __future__ import annotations

import textwrap

import pytest

from tests.unit.audit.textaudit import findings
from torchproof.model.results import Level

TRAIN = "torchrun --nproc-per-node=4 train.py"


def sh(command: str) -> dict[str, str]:
    return {"run.sh": f"#!/bin/bash\n{command}\n"}


def yml(text: str, path: str = "job.yaml") -> dict[str, str]:
    return {path: textwrap.dedent(text)}


def levels(texts: dict[str, str], rule: str) -> list[Level]:
    return [found.level for found in findings(texts, rule)]


@pytest.mark.parametrize(
    "command",
    [
        f"docker run --rm --gpus 4 image:1 {TRAIN}",
        f"docker run --gpus=all -it image:1 {TRAIN}",
        f"docker run --gpus '\"device=0,1\"' image:1 {TRAIN}",
        f"sudo docker container run --gpus all image:1 {TRAIN}",
        f"podman run --device nvidia.com/gpu=0 --device nvidia.com/gpu=1 image:1 {TRAIN}",
        f"docker run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=0,1 image:1 {TRAIN}",
        f"docker run --gpus all image:1 bash -lc 'cd /x && {TRAIN}'",
        f"docker run --gpus all --shm-size 64m image:1 {TRAIN}",
        f"docker run \\\n  --gpus all \\\n  -v $PWD:/w -w /w image:1 {TRAIN}",
        "docker --context x run --gpus 2 --entrypoint torchrun image:1 --nproc-per-node=2 t.py",
        "docker run --gpus 8 image:1",
    ],
)
def test_docker_with_several_gpus_and_the_default_shm_is_an_error(command: str) -> None:
    (found,) = findings(sh(command), "recipe.shm")
    assert found.level is Level.ERROR
    assert found.where == "run.sh:2"
    assert "--shm-size" in found.fix


@pytest.mark.parametrize(
    "command",
    [
        f"docker run --gpus all --shm-size=8g image:1 {TRAIN}",
        f"docker run --gpus all --shm-size 16gb image:1 {TRAIN}",
        f"docker run --gpus all --ipc=host image:1 {TRAIN}",
        f"docker run --gpus all --ipc host image:1 {TRAIN}",
        f"docker run --gpus all -v /dev/shm:/dev/shm image:1 {TRAIN}",
        f"docker run --gpus all --tmpfs /dev/shm:rw,size=8g image:1 {TRAIN}",
        f"docker run --gpus all --mount type=tmpfs,dst=/dev/shm,tmpfs-size=8g image:1 {TRAIN}",
        f"docker run --gpus all --shm-size $SHM image:1 {TRAIN}",
        "docker run --rm image:1 python -V",
        "docker build --shm-size 1m . && docker ps",
        "echo docker run --gpus all image:1",
    ],
)
def test_docker_with_enough_shm_or_no_gpu_has_no_finding(command: str) -> None:
    assert findings(sh(command), "recipe.shm") == []


def test_one_gpu_and_the_default_shm_is_a_note_and_all_gpus_a_warning() -> None:
    assert levels(sh("docker run --gpus 1 image:1 python t.py"), "recipe.shm") == [Level.NOTE]
    assert levels(sh("docker run --gpus all image:1"), "recipe.shm") == [Level.WARNING]


COMPOSE = """\
services:
  train:
    image: image:1
    {shm}
    command: {command}
    deploy:
      resources:
        reservations:
          devices:
            - driver: nvidia
              {devices}
              capabilities: [gpu]
"""


@pytest.mark.parametrize(
    ("devices", "shm", "expected"),
    [
        ("count: 4", "", [Level.ERROR]),
        ("count: all", "", [Level.WARNING]),
        ("device_ids: ['0', '1']", "", [Level.ERROR]),
        ("count: 1", "", [Level.NOTE]),
        ("count: 4", "shm_size: 8gb", []),
        ("count: 4", "shm_size: '64m'", [Level.ERROR]),
        ("count: 4", "shm_size: 256m", [Level.WARNING]),
        ("count: 4", "ipc: host", []),
        ("count: 4", "tmpfs: ['/dev/shm:size=8g']", []),
        ("count: 4", "volumes: ['/dev/shm:/dev/shm']", []),
        ("count: 4", "volumes: [{type: bind, source: /dev/shm, target: /dev/shm}]", []),
    ],
)
def test_compose_services(devices: str, shm: str, expected: list[Level]) -> None:
    text = COMPOSE.format(devices=devices, shm=shm, command="python train.py")
    assert levels({"compose.yaml": text}, "recipe.shm") == expected


def test_compose_gpus_in_its_other_spellings() -> None:
    short = "services: {a: {image: i, gpus: all, command: torchrun --nproc-per-node=2 t.py}}"
    assert levels({"docker-compose.yml": short}, "recipe.shm") == [Level.ERROR]
    runtime = (
        "services: {a: {image: i, runtime: nvidia, environment: {NVIDIA_VISIBLE_DEVICES: '0,1'}}}"
    )
    assert levels({"compose.yml": runtime}, "recipe.shm") == [Level.ERROR]


POD = """\
containers:
  - name: main
    image: image:1
    command: [torchrun, --nproc-per-node=gpu, train.py]
    resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}
    {mounts}
{volumes}
"""
MOUNT = "volumeMounts: [{name: dshm, mountPath: /dev/shm}]"
MEMORY = "volumes: [{name: dshm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]"


def pod(gpus: str = "4", mounts: str = "", volumes: str = "") -> str:
    return POD.format(gpus=gpus, mounts=mounts, volumes=volumes)


def in_kind(kind: str, spec: str) -> str:
    """Put a pod's spec where a kind keeps it."""

    def under(keys: str, body: str) -> str:
        for key in reversed(keys.split()):
            body = f"{key}:\n{textwrap.indent(body, '  ')}"
        return body

    places = {
        "Pod": "spec",
        "Job": "spec template spec",
        "Deployment": "spec template spec",
        "CronJob": "spec jobTemplate spec template spec",
        "PyTorchJob": "spec pytorchReplicaSpecs Worker template spec",
        "MPIJob": "spec mpiReplicaSpecs Worker template spec",
        "LeaderWorkerSet": "spec leaderWorkerTemplate workerTemplate spec",
    }
    if kind == "List":
        item = textwrap.indent(in_kind("Pod", spec), "    ").replace(
            "    apiVersion", "  - apiVersion", 1
        )
        return f"apiVersion: v1\nkind: List\nitems:\n{item}"
    if kind == "JobSet":
        job = textwrap.indent(under("template spec template spec", spec), "      ")
        return f"apiVersion: x/v1\nkind: JobSet\nspec:\n  replicatedJobs:\n    - name: a\n{job}"
    body = under(places[kind], spec)
    return f"apiVersion: x/v1\nkind: {kind}\nmetadata: {{name: train}}\n{body}"


KINDS = [
    *("Pod", "Job", "Deployment", "CronJob", "PyTorchJob", "MPIJob", "LeaderWorkerSet"),
    *("List", "JobSet"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_workload_needs_a_memory_volume_at_dev_shm(kind: str) -> None:
    (found,) = findings({"job.yaml": in_kind(kind, pod())}, "recipe.shm")
    assert found.level is Level.ERROR
    assert found.where.startswith("job.yaml:")
    assert "emptyDir" in found.fix
    good = in_kind(kind, pod(mounts=MOUNT, volumes=MEMORY))
    assert findings({"job.yaml": good}, "recipe.shm") == []


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (pod(gpus="'4'"), [Level.ERROR]),
        (pod(volumes=MEMORY), [Level.ERROR]),
        (pod(mounts=MOUNT), [Level.ERROR]),
        (pod(mounts=MOUNT, volumes="volumes: [{name: dshm, emptyDir: {}}]"), [Level.WARNING]),
        (
            pod(
                mounts=MOUNT,
                volumes="volumes: [{name: dshm, emptyDir: {medium: Memory, sizeLimit: 128Mi}}]",
            ),
            [Level.WARNING],
        ),
        (pod(mounts=MOUNT, volumes="volumes: [{name: dshm, emptyDir: {medium: Memory}}]"), []),
        (pod(mounts=MOUNT, volumes="volumes: [{name: dshm, hostPath: {path: /dev/shm}}]"), []),
        (
            pod(mounts="volumeMounts: [{name: dshm, mountPath: /dev/shm/}]", volumes=MEMORY),
            [],
        ),
        (pod(volumes="hostIPC: true"), []),
        (pod(gpus="1"), [Level.NOTE]),
        (pod(gpus="0"), []),
    ],
)
def test_pods_in_all_their_spellings(spec: str, expected: list[Level]) -> None:
    assert levels({"pod.yaml": in_kind("Pod", spec)}, "recipe.shm") == expected


def test_every_document_of_a_file_and_json_are_read() -> None:
    two = in_kind("Pod", pod(mounts=MOUNT, volumes=MEMORY)) + "\n---\n" + in_kind("Job", pod())
    assert len(findings({"all.yaml": two}, "recipe.shm")) == 1
    json = (
        '{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "a", '
        '"resources": {"requests": {"nvidia.com/gpu": "2"}}}]}}'
    )
    assert len(findings({"pod.json": json}, "recipe.shm")) == 1


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        (sh("docker run --gpus 1 i torchrun --nproc-per-node=4 t.py"), 1),
        (
            sh("docker run --gpus device=0 i python -m torch.distributed.run --nproc_per_node 2 t"),
            1,
        ),
        (sh("docker run --gpus all -e CUDA_VISIBLE_DEVICES=0 i torchrun --nproc-per-node=2 t"), 1),
        (sh("docker run --gpus 4 i torchrun --nproc-per-node=gpu t.py"), 0),
        (sh("docker run --gpus all i torchrun --nproc-per-node=8 t.py"), 0),
        (sh("docker run --gpus 4 i torchrun --nproc-per-node=4 t.py"), 0),
        (sh("docker run --gpus 2 i accelerate launch --num_processes 4 t.py"), 1),
        ({"j.sh": "#!/bin/bash\n#SBATCH --gres=gpu:2\nsrun torchrun --nproc-per-node 4 t.py\n"}, 1),
        (
            {
                "j.sbatch": "#!/bin/bash\n#SBATCH --gpus-per-node=4 --ntasks-per-node=4\n"
                "srun torchrun --nproc_per_node=4 t.py\n"
            },
            1,
        ),
        (
            {
                "j.sbatch": "#!/bin/bash\n#SBATCH -N 2 --gpus=16 --ntasks-per-node=1\n"
                "srun torchrun --nnodes 2 --nproc_per_node=8 t.py\n"
            },
            0,
        ),
        ({"j.slurm": "#!/bin/bash\n#SBATCH --gpus-per-node=h100:8\nsrun python t.py\n"}, 0),
    ],
)
def test_more_ranks_than_gpus_are_an_error(texts: dict[str, str], count: int) -> None:
    assert levels(texts, "recipe.ranks") == [Level.ERROR] * count


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        (sh("docker run -u 1000:1000 i python t.py"), 1),
        (sh("docker run --user=$(id -u):$(id -g) i python t.py"), 1),
        (sh("docker run --user 1000 -e HOME=/tmp i python t.py"), 0),
        (sh("docker run --user 1000 -v /etc/passwd:/etc/passwd:ro i python t.py"), 0),
        (sh("podman run --userns keep-id --user 1000 i python t.py"), 0),
        (sh("docker run --user 0 i python t.py"), 0),
        (sh("docker run --user app i python t.py"), 0),
        (sh("docker run --read-only i python t.py"), 1),
        ({"c.yaml": "services: {a: {image: i, user: '1000'}}"}, 1),
        (yml(in_kind("Pod", pod(volumes="securityContext: {runAsUser: 1000}"))), 1),
        (
            yml(
                in_kind(
                    "Pod",
                    pod(
                        mounts="env: [{name: HOME, value: /tmp}]",
                        volumes="securityContext: {runAsUser: 1000}",
                    ),
                )
            ),
            0,
        ),
    ],
)
def test_a_foreign_user_without_home_is_a_warning(texts: dict[str, str], count: int) -> None:
    assert levels(texts, "recipe.home") == [Level.WARNING] * count


@pytest.mark.parametrize(
    ("texts", "count"),
    [
        (sh("docker run --device /dev/infiniband/uverbs0 i t"), 1),
        (sh("docker run --device=/dev/infiniband --ulimit memlock=-1:-1 i t"), 0),
        ({"c.yml": "services: {a: {image: i, devices: ['/dev/infiniband:/dev/infiniband']}}"}, 1),
        (
            {
                "c.yml": "services: {a: {image: i, devices: [/dev/infiniband], "
                "ulimits: {memlock: -1}}}"
            },
            0,
        ),
        (
            {
                "p.yaml": "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, resources: "
                "{limits: {rdma/hca: 1}}}]}"
            },
            1,
        ),
        (
            {
                "p.yaml": "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, "
                "securityContext: {capabilities: {add: [IPC_LOCK]}}, "
                "resources: {limits: {rdma/hca: 1}}}]}"
            },
            0,
        ),
    ],
)
def test_rdma_needs_locked_memory(texts: dict[str, str], count: int) -> None:
    assert len(findings(texts, "recipe.memlock")) == count


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("docker run --network host -e MASTER_PORT=29500 i python t.py", 1),
        ("docker run --net=host i torchrun --master-port=29500 t.py", 1),
        ("docker run --net=host i torchrun --standalone t.py", 0),
        ("docker run -e MASTER_PORT=29500 i python t.py", 0),
        ("docker run i torchrun --master-addr=n1 --rdzv-backend=c10d --rdzv-endpoint=n1:0 t", 1),
        ("docker run i torchrun --master_addr n1 --node_rank 0 t.py", 0),
    ],
)
def test_the_rendezvous(command: str, count: int) -> None:
    assert levels(sh(command), "recipe.rendezvous") == [Level.WARNING] * count


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("docker run i sh -c 'cd /x && python t.py'", 1),
        ("docker run i bash -lc 'cd /x && exec python t.py'", 0),
        ("docker run --init i sh -c 'cd /x && python t.py'", 0),
        ("docker run i sh -c 'python t.py'", 0),
        ("docker run i python t.py", 0),
    ],
)
def test_a_shell_as_process_1(command: str, count: int) -> None:
    assert len(findings(sh(command), "recipe.signals")) == count


def test_hand_made_devices_need_the_control_nodes() -> None:
    bad = "docker run --device /dev/nvidia0 --device /dev/nvidiactl i t"
    (found,) = findings(sh(bad), "recipe.devices")
    assert "/dev/nvidia-uvm" in found.message
    assert (
        findings(sh(bad.replace(" i t", " --device=/dev/nvidia-uvm i t")), "recipe.devices") == []
    )


@pytest.mark.parametrize(
    ("image", "count"),
    [
        ("team/torch", 1),
        ("team/torch:latest", 1),
        ("team/torch:auto", 1),
        ("team/torch:2.9.1-cu128", 0),
        (f"team/torch:latest@sha256:{'a' * 64}", 0),
        ("$IMAGE", 0),
    ],
)
def test_an_image_by_a_moving_tag(image: str, count: int) -> None:
    command = f"docker run --gpus 1 {image} python t.py"
    assert levels(sh(command), "recipe.image-tag") == [Level.WARNING] * count


@pytest.mark.parametrize(
    ("gpus", "visible", "count"), [("1", "3", 1), ("4", "0,1,2,3", 0), ("2", "2,3", 1)]
)
def test_visible_devices_count_from_zero_inside(gpus: str, visible: str, count: int) -> None:
    env = f"env: [{{name: CUDA_VISIBLE_DEVICES, value: '{visible}'}}]"
    texts = {"pod.yaml": in_kind("Pod", pod(gpus=gpus, mounts=env))}
    assert len(findings(texts, "recipe.visible-devices")) == count


def test_kubernetes_must_not_take_all_gpus_by_the_variable() -> None:
    env = "env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]"
    texts = {"pod.yaml": in_kind("Pod", pod(mounts=env))}
    assert levels(texts, "recipe.visible-devices") == [Level.WARNING]


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("srun singularity exec image.sif python t.py", 1),
        ("apptainer run image.sif", 1),
        ("srun singularity exec --nv image.sif python t.py", 0),
        ("apptainer exec --bind /x --nv image.sif python t.py", 0),
    ],
)
def test_singularity_needs_nv_in_a_gpu_job(line: str, count: int) -> None:
    texts = {"job.sbatch": f"#!/bin/bash\n#SBATCH --gres=gpu:a100:1\n{line}\n"}
    assert len(findings(texts, "recipe.singularity-nv")) == count


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "services: [1, 2]",
        "apiVersion: v1\nkind: Pod\nspec: {containers: [1, null, {}]}",
        "apiVersion: v1\nkind: Pod\nspec: {containers: [{resources: 3, volumeMounts: 4, env: 5}]}",
        "services: {a: null, b: {command: 3, volumes: {}, deploy: []}}",
        "? [a, b]\n: c",
        "&a [*a]",
        "- !!python/object:os.system x",
        "kind: List\napiVersion: v1\nitems: {}",
        "a: &a [1]\nb: [*a,*a]",
        "{{ template }}",
        "",
    ],
)
def test_broken_yaml_gives_findings_and_no_crash(text: str) -> None:
    findings({"x.yaml": text})


def test_a_billion_laughs_do_not_stop_the_audit() -> None:
    lines = ["a0: &a0 [x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    findings({"x.yaml": "\n".join(lines)})


def test_the_container_of_a_ci_job_is_a_launch() -> None:
    job = "jobs: {gpu: {container: {image: 'i:1', options: '--gpus all'}, steps: []}}"
    assert levels({"ci.yml": job}, "recipe.shm") == [Level.WARNING]
    good = job.replace("--gpus all", "--gpus all --shm-size=8g")
    assert findings({"ci.yml": good}, "recipe.shm") == []
