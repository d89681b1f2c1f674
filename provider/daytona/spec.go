package daytona

import (
	"cmp"
	"encoding/json"
	"maps"
	"math"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// SnapshotPrefix begins an image that is a snapshot of the account: its name or ID follows.
const SnapshotPrefix = "daytona-snapshot:"

// validateSpec returns an error for a spec that this provider can never create.
func validateSpec(s sandpit.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	unsupported := func(hint, format string, args ...any) error {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, format, args...), hint)
	}
	switch {
	case s.Image == sandpit.HostImage:
		return unsupported("name an image, for example python:3.12-slim", "image %q: Daytona cannot use this machine's own programs", sandpit.HostImage)
	case strings.ContainsAny(string(s.Image), " \t\r\n"):
		return sandpit.Errorf(sandpit.Invalid, "image %.200q: want the name of an image", string(s.Image))
	case s.Hostname != "":
		return unsupported("omit the host name", "host name %q: Daytona chooses the host name of a sandbox", s.Hostname)
	case s.Resources.PIDs != 0:
		return unsupported("omit the limit", "limit of %d processes: Daytona cannot limit the processes of a sandbox", s.Resources.PIDs)
	}
	for _, m := range s.Mounts {
		switch {
		case m.Volume == "":
			return unsupported("copy the files with: sandpit cp", "mount %q: Daytona does not see this machine's files", m.Source)
		case m.Subpath != "":
			return unsupported("mount the whole volume", "mount of volume %q on %s: this provider cannot mount a directory of a volume", m.Volume, m.Target)
		case m.ReadOnly:
			return unsupported("omit read-only", "mount of volume %q on %s: Daytona cannot mount volumes read-only", m.Volume, m.Target)
		}
	}
	for key := range s.Labels {
		if strings.HasPrefix(key, ownLabels) {
			return sandpit.Errorf(sandpit.Invalid, "label %.100q: names that begin with %q belong to the provider", key, ownLabels)
		}
	}
	return nil
}

// newLabels returns the labels of a new sandbox: the caller's, for people and the account's other
// programs, and the provider's own.
func (p *Provider) newLabels(id sandpit.ID, spec sandpit.Spec, attempt string) (map[string]string, error) {
	public := spec.Clone()
	public.Env = nil // it may contain secrets, and labels are shown in lists
	text, err := json.Marshal(public)
	if err != nil {
		return nil, err
	}
	labels := make(map[string]string, len(spec.Labels)+4)
	maps.Copy(labels, spec.Labels)
	maps.DeleteFunc(labels, func(key, _ string) bool { return strings.HasPrefix(key, serverLabels) }) // they are in the spec
	labels[labelID], labels[labelManager], labels[labelSpec], labels[labelAttempt] = string(id), p.o.Manager, string(text), attempt
	return labels, nil
}

// specOf returns the spec of a sandbox, without its environment.
func specOf(b box) (spec sandpit.Spec, err error) {
	err = json.Unmarshal([]byte(b.Labels[labelSpec]), &spec)
	return spec, err
}

// origin is what a sandbox starts from: one of the two.
type origin struct {
	snapshot string
	build    *buildInfo
}

// originOf returns what a sandbox starts from.
func (p *Provider) originOf(image sandpit.Image) origin {
	image = cmp.Or(image, p.o.Image)
	if id, ok := image.Snapshot(); ok {
		return origin{snapshot: p.snapshotName(id)}
	}
	if name, ok := strings.CutPrefix(string(image), SnapshotPrefix); ok {
		return origin{snapshot: name}
	}
	return origin{build: &buildInfo{"FROM " + string(image) + "\n"}}
}

const gibibyte = 1 << 30

// limits are the limits of a new sandbox in the API's units. Zero: those of its snapshot.
type limits struct{ cpu, memory, disk float64 }

// limitsFor returns the limits of a new sandbox.
//
// Unsupported: the API cannot express a limit.
func (p *Provider) limitsFor(spec sandpit.Spec, from origin) (limits, error) {
	r := spec.Resources
	if from.snapshot != "" {
		if r != (sandpit.Resources{}) {
			return limits{}, sandpit.WithHint(
				sandpit.Errorf(sandpit.Unsupported, "limits of a sandbox from snapshot %q: Daytona fixes them when the snapshot is created", from.snapshot),
				"omit the limits, or start from an image")
		}
		return limits{}, nil
	}
	l := limits{
		cpu:    cmp.Or(r.CPUs, p.o.Defaults.CPUs),
		memory: float64(cmp.Or(r.Memory, p.o.Defaults.Memory)) / gibibyte,
		disk:   float64(cmp.Or(r.Disk, p.o.Defaults.Disk)) / gibibyte,
	}
	for name, value := range map[string]float64{"CPUs": l.cpu, "GiB of memory": l.memory, "GiB of disk": l.disk} {
		if value != math.Trunc(value) {
			return l, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "limit of %g %s: Daytona limits whole ones", value, name), "use a whole number")
		}
	}
	return l, nil
}

// intervals are the times in minutes after which the cloud changes a sandbox by itself. A remove of
// 0 means at once when the sandbox stops.
type intervals struct{ stop, archive, remove int64 }

// intervalsFor returns the intervals for an expiry.
func (p *Provider) intervalsFor(e sandpit.Expiry) intervals {
	n := intervals{
		stop: toMinutes(min(cmp.Or(e.IdleStop, p.o.AutoStop), p.o.AutoStop)), archive: toMinutes(cmp.Or(e.Archive, p.o.AutoArchive)),
		remove: toMinutes(cmp.Or(e.Delete, p.o.AutoDelete)),
	}
	if p.o.Ephemeral {
		n.remove = 0
	}
	return n
}

// toMinutes rounds up to minutes, the unit of the API.
func toMinutes(d time.Duration) int64 { return int64((d + time.Minute - 1) / time.Minute) }

// toTTL returns the minutes until a deadline at which the cloud must delete a sandbox, or 0: the API
// has no time for other actions, so the manager performs them.
func toTTL(e sandpit.Expiry, from time.Time) int64 {
	if e.Deadline.IsZero() || cmp.Or(e.Action, sandpit.ActionKill) != sandpit.ActionKill {
		return 0
	}
	return max(1, toMinutes(e.Deadline.Sub(from)))
}
