package tool

import (
	"context"
	"net/url"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

const (
	pipTimeout  = 9 * time.Minute
	maxPackages = 100
	maxPackage  = 1000 // bytes of one requirement
)

type pipInput struct {
	Packages     []string `json:"packages,omitempty" jsonschema:"packages to install, such as requests or numpy==1.26.4"`
	Upgrade      bool     `json:"upgrade,omitempty" jsonschema:"upgrade installed packages to the newest version" default:"false"`
	Requirements string   `json:"requirements_file,omitempty" jsonschema:"path of a requirements file to install"`
	Index        string   `json:"index_url,omitempty" jsonschema:"URL of the package index; default: the image's, or the variable PIP_INDEX_URL"`
}

type pipData struct {
	Installed []packageInfo `json:"installed"`
	Output    string        `json:"output"`
}

// toArgs returns the arguments of pip. Input cannot become an option.
func (in pipInput) toArgs(s *Session) ([]string, error) {
	if len(in.Packages) == 0 && in.Requirements == "" {
		return nil, sandpit.Errorf(sandpit.Invalid, "packages or requirements_file is required")
	}
	if len(in.Packages) > maxPackages {
		return nil, sandpit.Errorf(sandpit.Invalid, "%d packages: want at most %d", len(in.Packages), maxPackages)
	}
	args := []string{
		"python3", "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-color", "--progress-bar=off", "--retries=2", "--timeout=20",
	}
	if in.Upgrade {
		args = append(args, "--upgrade")
	}
	if in.Index != "" {
		u, err := url.Parse(in.Index)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, sandpit.Errorf(sandpit.Invalid, "index_url: want a URL that begins with http:// or https://")
		}
		if password, given := u.User.Password(); given {
			s.secretSet().hide(password)
		}
		args = append(args, "--index-url="+in.Index)
	}
	if in.Requirements != "" {
		args = append(args, "--requirement="+s.absPath(in.Requirements))
	}
	for _, name := range in.Packages {
		if name == "" || strings.HasPrefix(name, "-") || strings.ContainsAny(name, "\n\r\x00") || len(name) > maxPackage {
			return nil, sandpit.Errorf(sandpit.Invalid, "%.100q is not the name of a package", name)
		}
	}
	return append(append(args, "--"), in.Packages...), nil
}

func pipInstall(ctx context.Context, s *Session, in pipInput) (Result, error) {
	args, err := in.toArgs(s)
	if err != nil {
		return Result{}, err
	}
	// In a sandbox pip may change the distribution's Python.
	env := map[string]string{"PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore", "PIP_NO_PYTHON_VERSION_WARNING": "1"}
	r, err := s.runProgram(ctx, sandpit.Command{Args: args, Env: env, Timeout: pipTimeout})
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return Result{}, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "this image has no Python: %w", err), "use an image with Python, such as python:3.12-slim")
	}
	said := strings.TrimSpace(r.Stdout + r.Stderr)
	if err != nil {
		return Result{Text: said}, err
	}
	if r.ExitCode != 0 {
		return Result{Text: said}, pipError(r)
	}
	data := pipData{Installed: parseInstalled(r.Stdout), Output: s.secretSet().tailText(said)}
	text := "Nothing to install: everything is installed already"
	if len(data.Installed) > 0 {
		var names []string
		for _, p := range data.Installed {
			names = append(names, p.Name+" "+p.Version)
		}
		text = "Installed " + strings.Join(names, ", ")
	}
	return Result{Text: text + "\n" + said, Data: data}, nil
}

// parseInstalled parses pip's list of installed packages: NAME-VERSION, separated by spaces.
func parseInstalled(output string) []packageInfo {
	found := []packageInfo{}
	for line := range strings.Lines(output) {
		list, ok := strings.CutPrefix(strings.TrimSpace(line), "Successfully installed ")
		if !ok {
			continue
		}
		for item := range strings.FieldsSeq(list) {
			if i := strings.LastIndexByte(item, '-'); i > 0 {
				found = append(found, packageInfo{item[:i], item[i+1:]})
			}
		}
	}
	return found
}

// pipError returns the error for a failed pip. The result also has pip's output.
func pipError(r workspace.Result) error {
	said := r.Stdout + r.Stderr
	for _, known := range []struct {
		mark string
		err  error
		hint string
	}{
		{"No module named pip", sandpit.Errorf(sandpit.Unsupported, "this image has no pip"), "use an image with pip, such as python:3.12-slim, or install python3-pip"},
		{"Failed to establish a new connection", errNoIndex(), hintNoIndex},
		{"Temporary failure in name resolution", errNoIndex(), hintNoIndex},
		{"NameResolutionError", errNoIndex(), hintNoIndex},
		{"Connection refused", errNoIndex(), hintNoIndex},
		{"ConnectTimeoutError", errNoIndex(), hintNoIndex},
		{"Network is unreachable", errNoIndex(), hintNoIndex},
		{"Could not open requirements file", sandpit.Errorf(sandpit.NotFound, "the requirements file cannot be read"), ""},
		{"No matching distribution found", sandpit.Errorf(sandpit.NotFound, "the index has no such package, or none for this Python"), ""},
		{"Invalid requirement", sandpit.Errorf(sandpit.Invalid, "invalid requirement"), "use names, with versions as in name==1.2"},
	} {
		if strings.Contains(said, known.mark) {
			return withHint(known.err, known.hint)
		}
	}
	return sandpit.Errorf(sandpit.Conflict, "pip failed with exit status %d", r.ExitCode)
}

const hintNoIndex = "the sandbox's network policy must allow the index, by default pypi.org and files.pythonhosted.org; or set index_url"

func errNoIndex() error {
	return sandpit.Errorf(sandpit.Unavailable, "pip cannot reach its index from the sandbox")
}

func withHint(err error, hint string) error {
	if hint == "" {
		return err
	}
	return sandpit.WithHint(err, hint)
}
