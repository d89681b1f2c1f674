package cli

import (
	"fmt"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// parseEnv parses NAME=VALUE, and NAME for the value of this program's environment; an unset NAME
// is left out with a warning.
func (a *app) parseEnv(list []string) (map[string]string, error) {
	env := make(map[string]string, len(list))
	for _, e := range list {
		name, value, ok := strings.Cut(e, "=")
		if name == "" {
			return nil, sandpit.Errorf(sandpit.Invalid, "--env: want NAME=VALUE or NAME")
		}
		if !ok {
			if value, ok = lookupEnv(a.options.Environ, name); !ok {
				fmt.Fprintf(a.Err, "sandpit: warning: -e %s: no such variable in this shell\n", escapeText(name))
				continue
			}
		}
		env[name] = value
	}
	return env, nil
}

func lookupEnv(environ []string, name string) (value string, ok bool) {
	for _, e := range environ {
		if k, v, _ := strings.Cut(e, "="); k == name {
			return v, true
		}
	}
	return "", false
}

func parseLabels(list []string) (map[string]string, error) {
	labels := make(map[string]string, len(list))
	for _, l := range list {
		name, value, ok := strings.Cut(l, "=")
		if !ok || name == "" {
			return nil, sandpit.Errorf(sandpit.Invalid, "--label %q: want NAME=VALUE", l)
		}
		labels[name] = value
	}
	return labels, nil
}
