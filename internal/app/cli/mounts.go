package cli

import (
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/files/hostpath"
)

// mountRules returns what -v may mount of this machine. Allowed are the paths of --allow-volume.
func mountRules(cfg config.Config, allowed []string) (hostpath.Rules, error) {
	rules := hostpath.Rules{Own: cfg.OwnPaths(), Homes: []string{cfg.Home}}
	for _, a := range allowed {
		resolved, err := hostpath.Resolve(a)
		if err != nil {
			return rules, err
		}
		rules.Allowed = append(rules.Allowed, resolved)
	}
	return rules, nil
}

// parseVolumes turns the -v flags into mounts. It warns of probable mistakes.
func parseVolumes(volumes []string, rules hostpath.Rules, warn io.Writer) ([]sandpit.Mount, error) {
	var mounts []sandpit.Mount
	for _, v := range volumes {
		m, err := parseVolume(v)
		if err != nil {
			return nil, err
		}
		if m.Volume != "" && isDirectory(m.Volume) {
			fmt.Fprintf(warn, "sandpit: warning: -v %s is the volume %s of a server; use -v ./%s for the directory\n", escapeText(v), escapeText(m.Volume), escapeText(v))
		}
		if m.Volume == "" {
			if err := rules.Check(m.Source); err != nil {
				return nil, sandpit.WithHint(err, "mount a directory in it, or allow it: --allow-volume "+shellQuote(m.Source))
			}
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// parseVolume parses HOST:SANDBOX[:ro|rw], where HOST is a path of this machine or the name of a
// volume.
func parseVolume(v string) (sandpit.Mount, error) {
	m, err := splitVolume(v)
	if err != nil || m.Volume != "" {
		return m, err
	}
	m.Source, err = hostpath.Resolve(m.Source)
	return m, err
}

// splitVolume parses HOST:SANDBOX[:ro|rw]. A HOST without a slash, other than . and .., is the
// name of a volume, as in Docker. A volume is writable unless it has ro, a path only if it has
// rw.
func splitVolume(v string) (sandpit.Mount, error) {
	parts := strings.Split(v, ":")
	var m sandpit.Mount
	const most = 3
	if len(parts) < most-1 || len(parts) > most || parts[0] == "" || !path.IsAbs(parts[1]) {
		return m, volumeError(v)
	}
	mode := ""
	if len(parts) == most {
		if mode = parts[2]; mode != "ro" && mode != "rw" {
			return m, volumeError(v)
		}
	}
	m.Target = path.Clean(parts[1])
	if host := parts[0]; host != "." && host != ".." && !strings.Contains(host, "/") {
		m.Volume, m.ReadOnly = host, mode == "ro"
		return m, sandpit.CheckVolumeName(host)
	}
	m.Source, m.ReadOnly = parts[0], mode != "rw"
	return m, nil
}

// parseTemporary parses SANDBOX[:keep] of the --temporary flags.
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
	return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "volume %q: want HOST:SANDBOX[:ro|rw]", v),
		"for example -v ./data:/data, -v ./data:/data:rw to let the sandbox write, or with the name of a volume -v data:/data")
}

// addAllowVolume adds the flag that permits mounts that are refused otherwise.
func addAllowVolume(f *pflag.FlagSet, allowed *[]string) {
	f.StringArrayVar(allowed, "allow-volume", nil,
		"`path` that -v may mount although it is refused otherwise: /, /etc, home directories, credentials, sockets and sandpit's own files")
}
