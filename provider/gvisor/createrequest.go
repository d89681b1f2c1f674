package gvisor

import (
	"cmp"
	"os"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
)

// createRequest describes a sandbox to the engine. The files that it needs come with it: see
// createFiles.
type createRequest struct {
	Hostname string         `json:"hostname"`
	Layer    layer          `json:"layer"`
	Limits   limitsRequest  `json:"limits"`
	Setup    guest.Setup    `json:"setup"`
	Mounts   []mountRequest `json:"mounts,omitempty"`
	// Network is nil for an offline sandbox.
	Network *gatewayConfig `json:"network,omitempty"`
	// Saved means that the files of a saved layer come with the request.
	Saved bool `json:"saved,omitempty"`
	// Restored means that the files of a saved kernel do. Renew means that the files, of either
	// kind, belong to another sandbox.
	Restored bool `json:"restored,omitempty"`
	Renew    bool `json:"renew,omitempty"`
	// SetIDs has the set-user-ID and set-group-ID bits of programs apply, as sudo needs it.
	SetIDs bool `json:"setIDs,omitempty"`
	// Group is that of the record.
	Group sandpit.ID `json:"group,omitempty"`
	// IDs are those of its processes. Nil: the engine's root.
	IDs *sandboxIDs `json:"ids,omitempty"`
	// Owner shares the CPU with other owners, whatever number of sandboxes each has.
	Owner string `json:"owner,omitempty"`
}

// newCreateRequest describes the sandbox of a record, except for its mounts and network.
func newCreateRequest(rec record, src bootSource) createRequest {
	req := createRequest{
		Hostname: cmp.Or(rec.Spec.Hostname, "sandpit"), Limits: rec.Limits,
		Saved: len(src.layer) > 0, Restored: len(src.kernel) > 0, Renew: src.isCopy,
		Group: rec.Group, Owner: rec.Spec.Labels[sandpit.OwnerLabel],
		SetIDs: len(rec.Shown) == 0, // an image's programs are for the sandbox; the machine's are for the machine's users
	}
	req.Limits.Kernel = src.kernelMemory
	for _, m := range rec.Shown { // by path: only what every user may read
		req.Mounts = append(req.Mounts, mountRequest{
			mountSource: mountSource{Path: m.Source, IsDir: true}, Target: m.Target, ReadOnly: true, Image: true,
		})
	}
	return req
}

// createFiles are the files that come with a createRequest.
type createFiles struct {
	record   *os.File // locked
	root     *os.File // the image
	guest    *os.File // the guest's image
	identity *os.File
	idLock   *os.File   // the lock of its IDs; nil without IDs of its own
	layer    []*os.File // a saved layer, in the order of layerFileNames
	kernel   []*os.File // a saved kernel, in the order of kernelFileNames
	mounts   []*os.File // one for each detached mountSource
}

// inOrder returns the files in the order in which they are sent.
func (f createFiles) inOrder() []*os.File {
	files := []*os.File{f.record, f.root, f.guest, f.identity}
	if f.idLock != nil {
		files = append(files, f.idLock)
	}
	return slices.Concat(files, f.layer, f.kernel, f.mounts)
}

// nameFiles returns the files of a request by their names. It is the opposite of list.
func (r createRequest) nameFiles(files []*os.File) (createFiles, error) {
	var named createFiles
	rest := files
	takeN := func(count int) []*os.File {
		count = min(count, len(rest))
		taken := rest[:count]
		rest = rest[count:]
		return taken
	}
	take := func(to **os.File) {
		for _, f := range takeN(1) {
			*to = f
		}
	}
	for _, to := range []**os.File{&named.record, &named.root, &named.guest, &named.identity} {
		take(to)
	}
	if r.IDs != nil {
		take(&named.idLock)
	}
	if r.Saved {
		named.layer = takeN(len(layerFileNames()))
	} else if r.Restored {
		named.kernel = takeN(len(kernelFileNames()))
	}
	named.mounts = rest
	if named.identity == nil || r.IDs != nil && named.idLock == nil ||
		r.Saved && len(named.layer) < len(layerFileNames()) ||
		r.Restored && !r.Saved && len(named.kernel) < len(kernelFileNames()) {
		return createFiles{}, sandpit.Errorf(sandpit.Invalid, "create: files are missing")
	}
	return named, nil
}

// layer is where a sandbox stores its changes to files.
type layer struct {
	// Size is how many bytes may be written.
	Size int64 `json:"size"`
	// Dir is a directory on disk. Nil: the changes are in memory.
	Dir *mountSource `json:"dir,omitempty"`
}

// toOverlayMedium returns the layer as gVisor's flags describe it.
func (l layer) toOverlayMedium() string {
	if l.Dir == nil {
		return "memory"
	}
	return "dir=" + l.Dir.Path
}

// mountRequest is a directory or file of the machine that is mounted in the sandbox.
type mountRequest struct {
	mountSource
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// Image means that the files belong to the image: later changes on the machine need not be
	// seen inside.
	Image bool `json:"image,omitempty"`
}

// mountSource is something of the machine that the engine can reach: by its path, or as a detached
// mount that came with the request.
type mountSource struct {
	Path     string `json:"path"`
	Detached bool   `json:"detached,omitempty"`
	// Exact means that no part of the path may be a symbolic link.
	Exact bool `json:"exact,omitempty"`
	IsDir bool `json:"is_dir,omitempty"`
}
