package gvisor

import (
	"fmt"
	"maps"
	"path/filepath"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
)

// guestProgram is the path of the guest inside. The main program plays the guest when it has this
// name.
const (
	guestDir     = sandpit.GuestDir
	guestProgram = guestDir + "/" + guest.Name
)

// openFiles is how many files a process may have open: as many as in a container, and no more than
// the file server of a sandbox can have.
const openFiles = 65536

// newSpec describes a sandbox to gVisor. The bundle, the paths of images and the sources of mounts
// are as the engine sees them.
func newSpec(bundle string, req createRequest, rootImage, guestImage string) *specs.Spec {
	spec := &specs.Spec{
		Version:  specs.Version,
		Hostname: req.Hostname,
		Process: &specs.Process{
			Args: []string{guestProgram},
			Env: []string{
				"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
				guest.SetupVariable + "=" + req.Setup.Encode(),
			},
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Soft: openFiles, Hard: openFiles},
				{Type: "RLIMIT_CORE", Soft: 0, Hard: 0},
			},
			Cwd: "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding:    guestCapabilities(),
				Effective:   guestCapabilities(),
				Permitted:   guestCapabilities(),
				Inheritable: []string{},
				Ambient:     []string{},
			},
		},
		Root: &specs.Root{Path: filepath.Join(bundle, "root")},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys/fs/cgroup", Type: "cgroup2", Source: "cgroup2"},
			{Destination: guestDir, Type: "erofs", Source: guestImage, Options: []string{"ro"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.CgroupNamespace},
				{Type: specs.NetworkNamespace, Path: netnsPath},
			},
		},
		Annotations: rootAnnotations(rootImage, req.Layer),
	}
	if req.IDs != nil {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
		files := []specs.LinuxIDMapping{{HostID: uint32(req.IDs.Files), Size: uint32(req.IDs.Count)}} //nolint:gosec // IDs of the pool
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = files, files
	}
	if req.Setup.Drop != "" {
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: req.Setup.Drop, Type: "bind", Source: filepath.Join(bundle, "root"), Options: []string{"rbind", "ro", "nosuid"},
		})
	}
	for i, m := range req.Mounts {
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		if !m.Image {
			maps.Copy(spec.Annotations, sharedAnnotations(i, m.Path))
		}
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: m.Target, Type: "bind", Source: m.Path, Options: []string{"rbind", access, "nosuid"},
		})
	}
	return spec
}

// rootAnnotations make an EROFS image the root directory, with a writable layer above it. A layer
// on disk works only with a gofer, which gVisor starts for any bind mount.
func rootAnnotations(image string, l layer) map[string]string {
	const prefix = "dev.gvisor.spec.rootfs."
	return map[string]string{
		prefix + "source":  image,
		prefix + "type":    "erofs",
		prefix + "overlay": l.toOverlayMedium(),
		prefix + "options": "size=" + strconv.FormatInt(l.Size, 10),
	}
}

// sharedAnnotations declare that others change the files of a mount: gVisor then revalidates what
// it has cached at each use of a path.
func sharedAnnotations(number int, source string) map[string]string {
	prefix := fmt.Sprintf("dev.gvisor.spec.mount.m%d.", number)
	return map[string]string{prefix + "source": source, prefix + "type": "bind", prefix + "share": "shared"}
}

// guestCapabilities returns the capabilities of root inside: all that the sandbox's own kernel
// has. They have no meaning outside.
func guestCapabilities() []string {
	return []string{
		"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
		"CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_KILL", "CAP_LEASE", "CAP_LINUX_IMMUTABLE", "CAP_MKNOD",
		"CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID",
		"CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_CHROOT", "CAP_SYS_NICE",
		"CAP_SYS_PTRACE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG",
	}
}
