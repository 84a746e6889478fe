#!/bin/busybox sh
# The guest's first process. It mounts the usual file systems, inserts kernel modules, runs the steps in
# /steps, and powers off. The output of a step goes to the second serial port, between a begin line and an
# end line with the exit code. The first serial port, the console, is for the kernel and for errors of this
# script.
/bin/busybox --install -s /bin
export PATH=/sbin:/bin HOME=/ TMPDIR=/tmp

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/shm
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
ip link set lo up

stty -F /dev/ttyS1 raw
exec 3>/dev/ttyS1

# insert NAME [PARAMETER=VALUE...]: inserts a module. If it is built into the kernel, there is no file.
insert() {
    module=/modules/$1.ko
    shift
    [ ! -e $module ] || insmod $module "$@"
}

for module in configfs libcrc32c xfs loop; do
    insert $module
done

# prepare_file TARGET: writes the range that is read.
prepare_file() {
    dd if=/dev/zero of=$1 bs=1M count=$size_mib oflag=direct conv=notrunc 2>/dev/null
}

# prepare_volume DEVICE: makes a volume with a file of that size.
prepare_volume() {
    uringfs mkfs $1 >/dev/null &&
        dd if=/dev/zero bs=1M count=$size_mib 2>/dev/null | uringfs put - $1:/file >/dev/null
}

# prepare NAME RAW EXT4 XFS VOLUME: writes a range of the raw device and a file on each file system and in
# a volume, so that reads find blocks. Mounts with noatime, and syncs at the end, so that no journal is
# written while reads are counted.
prepare() {
    mkdir -p /$1/ext4 /$1/xfs
    mkfs.ext4 -q -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 $3 && mount -o noatime $3 /$1/ext4
    mkfs.xfs -q -f -s size=4096 $4 && mount -o noatime $4 /$1/xfs
    for target in $2 /$1/ext4/file /$1/xfs/file; do
        prepare_file $target
    done
    prepare_volume $5
    sync
}

# step NUMBER COMMAND...: runs a step. An empty command is a failure; in sh it would be a success.
step() {
    number=$1
    shift
    [ $# -gt 0 ] || set -- false
    echo "::begin $number" >&3
    "$@" >/tmp/.out 2>/tmp/.err
    code=$?
    cat /tmp/.out >&3
    [ $code = 0 ] || cat /tmp/.err >&3
    printf '\n::end %s %s\n' "$number" $code >&3
}

. /steps
poweroff -f
