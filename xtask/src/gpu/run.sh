#!/bin/sh
# Runs the checks of device memory in this folder, and prints their result. PYTHON is a Python that has
# torch, else python3.
cd "$(dirname "$0")" || exit 1
query=name,driver_version,pcie.link.gen.current,pcie.link.width.current
devices=$(nvidia-smi --query-gpu=$query --format=csv,noheader 2>/dev/null |
    sed 's/^\(.*\), \(.*\), \(.*\), \(.*\)$/\1, driver \2, PCIe \3 x\4/' | paste -sd ';' -)
processor=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
echo "machine: ${devices:-no device}; $processor, $(nproc) processors; Linux $(uname -r | cut -d- -f1)"
echo "run: scripted"
./gpu "$PWD/libhandfast_fabric_cuda.so"
echo "run: real"
./gpu
python=${PYTHON:-python3}
rm -rf site
"$python" -m zipfile -e handfast-*.whl site
result=$(PYTHONPATH=site "$python" -B -m unittest -v test_devices.Torch 2>&1)
echo "$result" >torch.log
summary=$(echo "$result" | grep -e '^Ran ' -e '^OK' -e '^FAILED' | paste -sd '|' - | sed 's/|/, /')
echo "torch: ${summary:-FAILED, see torch.log}"
