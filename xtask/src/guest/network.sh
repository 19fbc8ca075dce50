# What the guest runs before the command: two soft-RoCE NICs, rxe0 (10.0.0.1) and rxe1 (10.0.0.2), at
# the two ends of a wire; or, of two guests, rxe0 in each; or the same of another driver in NICS.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
set -e
trap 'echo "guest: the NICs cannot be set up" >&2; exit 125' EXIT
if [ -n "$DRIVERS" ]; then
    # The host lacks the user-space drivers: they come from packages unpacked beside the build.
    for folder in etc usr lib; do
        if [ -d "$DRIVERS/$folder" ]; then cp -a "$DRIVERS/$folder/." "/$folder/"; fi
    done
fi
ip link set lo up
# A long read is answered with a thousand packets at once, and what the queue of received packets
# cannot take is lost without a word: a busy host then sees queue pairs fail for nothing.
echo 100000 >/proc/sys/net/core/netdev_max_backlog
if [ "$HOSTS" = 2 ]; then
    # One NIC, at one end of a wire to the other guest.
    ip address add 10.0.0.$((HOST + 1))/24 dev eth0
    ip link set eth0 up
    rdma link add ${NICS}0 type $NICS netdev eth0
    apart=rxe0
    if [ "$HOST" = 0 ]; then NUMBERS_APART=; fi
else
    ip link add veth0 type veth peer name veth1
    for side in 0 1; do
        # Both ends are of this host. Without this what goes to the other would never touch the wire.
        echo 1 >/proc/sys/net/ipv4/conf/veth$side/accept_local
        echo 0 >/proc/sys/net/ipv4/conf/veth$side/rp_filter
        ip address add 10.0.0.$((side + 1))/24 dev veth$side
        ip link set veth$side up
    done
    echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
    for side in 0 1; do
        other=$((2 - side))
        ip rule add pref $((10 + side)) iif veth$side lookup local
        ip rule add pref $((20 + side)) to 10.0.0.$other lookup $((100 + side))
        ip route add 10.0.0.$other dev veth$side src 10.0.0.$((side + 1)) table $((100 + side))
    done
    ip rule add pref 100 lookup local
    ip rule del pref 0
    for side in 0 1; do
        rdma link add $NICS$side type $NICS netdev veth$side
    done
    apart=rxe1
fi
# Numbers of queue pairs that the NICs share would hide who mixes up mine and yours.
if [ -n "$NUMBERS_APART" ]; then "$NUMBERS_APART" "$apart" "$NUMBERS_APART_COUNT"; fi
set +e
trap - EXIT
