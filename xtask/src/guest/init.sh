#!/bin/busybox sh
# The guest's first program: loads what RDMA needs, puts a layer in memory over the host's files,
# goes there, runs the command, leaves its exit code in the shared folder, and switches off.
/bin/busybox mkdir -p /dev /proc /sys /host /layer /machine
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys

while read -r module; do
    insmod "/modules/$module" || echo "guest: $module does not load"
done </modules/order

# Whoever tries an accelerator wants to know no more than this.
if grep -q handfast.trial /proc/cmdline; then
    echo "guest: the trial boot works"
    poweroff -f
fi

# The guest ends by itself, also when nobody on the host waits for it any more.
(sleep "$(sed 's/.*handfast.seconds=\([0-9]*\).*/\1/' /proc/cmdline)"; poweroff -f) &

share() {
    mount -t 9p -o "trans=virtio,version=9p2000.L,msize=1048576,$3" "$1" "$2"
}
share host /host ro,cache=loose
mount -t tmpfs none /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work none /machine
mount -t devtmpfs none /machine/dev
mkdir -p /machine/dev/shm
mount -t tmpfs none /machine/dev/shm
mount -t proc none /machine/proc
mount -t sysfs none /machine/sys
mount -t tmpfs none /machine/run
# A module that was taken out is put back as on any host. The programs for that are not where the
# kernel looks for them: it would put back by itself what a story took out.
release=$(uname -r)
mkdir -p "/machine/lib/modules/$release" /machine/usr/local/sbin
mount --bind /modules "/machine/lib/modules/$release"
depmod -b /machine "$release" || echo "guest: modules are not listed"
cp /bin/busybox /machine/usr/local/sbin/busybox
for program in modprobe rmmod; do
    ln -sf busybox "/machine/usr/local/sbin/$program"
done
mkdir /machine/run/guest
share run /machine/run/guest rw,cache=none

stty -F /dev/ttyS1 raw -echo
# A pipe in between: to the command a serial line would be a terminal.
{
    chroot /machine /bin/sh /run/guest/start </dev/null 2>&1
    echo $? >/code
} | cat >/dev/ttyS1
# Waits until the line is empty.
stty -F /dev/ttyS1 raw -echo
cp /code /machine/run/guest/exit
sync
poweroff -f
