package daytona

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

const (
	// region is the only region.
	region = "local"
	// sandboxClass is the class of all sandboxes.
	sandboxClass = "container"
	// rootUser is the user of sandboxes whose spec names none.
	rootUser = "root"
)

// sandbox is a sandbox as clients see it.
type sandbox struct {
	sandboxItem

	Env       map[string]string `json:"env"`
	Volumes   []volumeMount     `json:"volumes"`
	BuildInfo *buildInfo        `json:"buildInfo,omitempty"`
}

// sandboxItem is a sandbox in a list.
type sandboxItem struct {
	ID               sandpit.ID        `json:"id"`
	Organization     string            `json:"organizationId"`
	Name             string            `json:"name"`
	Snapshot         string            `json:"snapshot,omitempty"`
	User             string            `json:"user"`
	Labels           map[string]string `json:"labels"`
	Public           bool              `json:"public"`
	NetworkBlockAll  bool              `json:"networkBlockAll"`
	NetworkAllowList *string           `json:"networkAllowList,omitempty"`
	DomainAllowList  *string           `json:"domainAllowList,omitempty"`
	Target           string            `json:"target"`
	CPU              float64           `json:"cpu"`
	GPU              int               `json:"gpu"`
	Memory           float64           `json:"memory"`
	Disk             float64           `json:"disk"`
	State            string            `json:"state"`
	DesiredState     string            `json:"desiredState"`
	ErrorReason      string            `json:"errorReason,omitempty"`
	Recoverable      bool              `json:"recoverable"`
	BackupState      string            `json:"backupState"`
	AutoStop         int64             `json:"autoStopInterval"`
	AutoPause        int64             `json:"autoPauseInterval"`
	AutoArchive      int64             `json:"autoArchiveInterval"`
	AutoDelete       int64             `json:"autoDeleteInterval"`
	AutoDestroyAt    *time.Time        `json:"autoDestroyAt,omitempty"`
	CreatedAt        time.Time         `json:"createdAt"`
	UpdatedAt        time.Time         `json:"updatedAt"`
	LastActivityAt   *time.Time        `json:"lastActivityAt,omitempty"`
	Class            string            `json:"sandboxClass"`
	ToolboxURL       string            `json:"toolboxProxyUrl"`
}

// buildInfo is the Dockerfile that a sandbox or snapshot was created from.
type buildInfo struct {
	Dockerfile  string    `json:"dockerfileContent,omitempty"`
	CreatedAt   time.Time `json:"createdAt"`
	UpdatedAt   time.Time `json:"updatedAt"`
	SnapshotRef string    `json:"snapshotRef"`
}

// describer describes sandboxes as Daytona's clients expect it.
type describer struct {
	manager *manager.Manager
	limits  sandpit.Resources // of sandboxes whose spec has none
}

// toSandbox describes a sandbox. url is the address of the server.
func (d *describer) toSandbox(ctx context.Context, url string, b sandpit.Sandbox) (sandbox, error) {
	out := sandbox{sandboxItem: d.toItem(url, b), Env: b.Spec.Env, Volumes: []volumeMount{}}
	if out.Env == nil {
		out.Env = map[string]string{}
	}
	if m, _ := markOf(b); m.Image != "" {
		out.BuildInfo = &buildInfo{CreatedAt: b.CreatedAt.UTC(), UpdatedAt: b.CreatedAt.UTC(), SnapshotRef: m.Image}
	}
	var err error
	out.Volumes, err = d.volumeMounts(ctx, b)
	return out, err
}

// respond returns the response to a call that returns a sandbox as it is now.
func (d *describer) respond(c *call, id sandpit.ID) (int, any, error) {
	b, err := d.manager.Get(id)
	if err != nil {
		return 0, nil, err
	}
	out, err := d.toSandbox(c.r.Context(), externalURL(c.r), b)
	return http.StatusOK, out, err
}

const gibibyte = 1 << 30

// toItem describes a sandbox as an item of a list.
func (d *describer) toItem(url string, b sandpit.Sandbox) sandboxItem {
	m, _ := markOf(b)
	state, when := toState(b.State), toIntervals(b.Policy)
	limits := b.Spec.Resources
	out := sandboxItem{
		ID: b.ID, Organization: b.Lease.Owner, Name: cmp.Or(b.Spec.Name, string(b.ID)), User: cmp.Or(b.Spec.User, rootUser),
		Labels: clientLabels(b), Public: m.Public, Target: region, Class: sandboxClass, ToolboxURL: url + PathToolbox,
		Snapshot: cmp.Or(m.Snapshot, m.Image, string(b.Spec.Image)),
		CPU:      cmp.Or(limits.CPUs, d.limits.CPUs),
		Memory:   float64(cmp.Or(limits.Memory, d.limits.Memory)) / gibibyte,
		Disk:     float64(cmp.Or(limits.Disk, d.limits.Disk)) / gibibyte,
		State:    state.now, DesiredState: state.desired, BackupState: "None",
		AutoStop: when.stop, AutoPause: when.pause, AutoArchive: when.archive, AutoDelete: when.delete,
		CreatedAt: b.CreatedAt.UTC(), UpdatedAt: b.CreatedAt.UTC(),
	}
	out.NetworkBlockAll, out.NetworkAllowList, out.DomainAllowList = describePolicy(b.Spec.Network)
	if b.State == sandpit.StateError {
		out.ErrorReason, out.Recoverable = b.Reason, d.manager.IsRecoverable(b.ID)
	}
	if b.State == sandpit.StateArchived {
		out.BackupState = "Completed"
	}
	if b.ChangedAt.After(b.CreatedAt) {
		out.UpdatedAt = b.ChangedAt.UTC()
	}
	if !b.LastUsedAt.IsZero() {
		out.LastActivityAt = new(b.LastUsedAt.UTC())
	}
	if !b.Lease.Deadline.IsZero() && (b.Lease.Action == sandpit.ActionKill || b.Lease.Action == "") {
		out.AutoDestroyAt = new(b.Lease.Deadline.UTC())
	}
	return out
}

// volumeMount is a mount of a volume in a sandbox.
type volumeMount struct {
	Volume  string `json:"volumeId"`
	Path    string `json:"mountPath"`
	Subpath string `json:"subpath,omitempty"`
}

// volumeMounts returns the mounts of a sandbox's volumes.
func (d *describer) volumeMounts(ctx context.Context, b sandpit.Sandbox) ([]volumeMount, error) {
	all := []volumeMount{}
	for _, m := range b.Spec.Mounts {
		if m.Volume != "" {
			all = append(all, volumeMount{Volume: m.Volume, Path: m.Target, Subpath: m.Subpath})
		}
	}
	if len(all) == 0 {
		return all, nil
	}
	list, ids, err := d.manager.Volumes().List(ctx, store.VolumeFilter{Owner: b.Lease.Owner})
	if err != nil {
		return nil, err
	}
	for i, mount := range all {
		for k, v := range list {
			if v.Name == mount.Volume {
				all[i].Volume = string(ids[k])
			}
		}
	}
	return all, nil
}

// joinList returns entries as Daytona's clients write them.
func joinList(entries []string) *string { return new(strings.Join(entries, ",")) }
