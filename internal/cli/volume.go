package cli

import (
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/hostpath"
)

// parseVolumes turns the -v flags into mounts. Allowed are the paths that the
// user has named a second time.
func parseVolumes(volumes, allowed []string) ([]sandpit.Mount, error) {
	twice := make([]string, 0, len(allowed))
	for _, a := range allowed {
		resolved, err := hostpath.Resolve(a)
		if err != nil {
			return nil, err
		}
		twice = append(twice, resolved)
	}
	var mounts []sandpit.Mount
	for _, v := range volumes {
		m, err := parseVolume(v)
		if err != nil {
			return nil, err
		}
		if err := checkSource(m, twice); err != nil {
			return nil, sandpit.WithHint(err, "if the sandbox shall have it all the same, say so: --allow-volume "+m.Source)
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// checkSource refuses parts of the machine that are not allowed.
func checkSource(m sandpit.Mount, allowed []string) error {
	if m.Volume != "" {
		return nil
	}
	return hostpath.Check(m.Source, allowed)
}

// parseVolume reads HOST:BOX[:ro|rw], HOST being a path of this machine or the name of
// a volume.
func parseVolume(v string) (sandpit.Mount, error) {
	m, err := splitVolume(v)
	if err != nil || m.Volume != "" {
		return m, err
	}
	m.Source, err = hostpath.Resolve(m.Source)
	return m, err
}

// splitVolume reads HOST:BOX[:ro|rw]. A HOST without a slash, other than . and .., is
// the name of a volume, as it is to Docker.
func splitVolume(v string) (sandpit.Mount, error) {
	parts := strings.Split(v, ":")
	var m sandpit.Mount
	switch {
	case len(parts) == 3 && parts[2] == "ro":
		m.ReadOnly = true
	case len(parts) == 3 && parts[2] == "rw", len(parts) == 2:
	default:
		return m, volumeError(v)
	}
	if parts[0] == "" || !path.IsAbs(parts[1]) {
		return m, volumeError(v)
	}
	m.Target = path.Clean(parts[1])
	if host := parts[0]; host != "." && host != ".." && !strings.Contains(host, "/") {
		m.Volume = host
		return m, sandpit.CheckVolumeName(host)
	}
	m.Source = parts[0]
	return m, nil
}

// parseTemporary reads BOX[:keep] of the --temporary flags.
func parseTemporary(list []string) ([]sandpit.Mount, error) {
	var mounts []sandpit.Mount
	for _, text := range list {
		target, keep := strings.CutSuffix(text, ":keep")
		if !path.IsAbs(target) || strings.Contains(target, ":") {
			return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "temporary directory %q: want SANDBOX or SANDBOX:keep", text),
				"for example --temporary /workspace")
		}
		mounts = append(mounts, sandpit.Mount{Temporary: true, Keep: keep, Target: path.Clean(target)})
	}
	return mounts, nil
}

func volumeError(v string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "volume %q: want HOST:SANDBOX or HOST:SANDBOX:ro", v),
		"for example -v ./data:/data:ro, or with the name of a volume -v data:/data")
}
