package workspace

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// Repository is a repository for Clone.
type Repository struct {
	// URL is https://, http://, ssh://, git:// or a path inside. A password in it is used as
	// Password, and not stored.
	URL string
	// Ref is a branch, a tag, or a full commit hash. Default: the remote's default branch.
	Ref string
	// Dir is the target directory, relative to the workspace. Default: the repository's name.
	Dir string
	// Depth is how many commits of history are fetched. Default: all.
	Depth int
	// Username and Password are for a repository over http or https that requires them. They
	// are only in git's environment while it runs. Default of Username: the usual one for
	// tokens.
	Username, Password string
	// Env is added to git's environment.
	Env map[string]string
}

var commitPattern = pattern.New(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// Clone fetches a repository with the sandbox's own git and network, and returns its
// directory.
//
// Invalid: the repository can never be cloned. NotFound: the sandbox has no git.
// Unauthenticated: the remote refuses the credentials. Conflict: git failed otherwise; the
// error has its message. Also the errors of Run.
func (w *Workspace) Clone(ctx context.Context, r Repository) (dir string, err error) {
	r, err = r.withDefaults()
	if err != nil {
		return "", err
	}
	credentials, err := GitCredentials(r.URL, r.Username, r.Password)
	if err != nil {
		return "", err
	}
	env := maps.Clone(r.Env)
	if env == nil {
		env = map[string]string{}
	}
	maps.Copy(env, credentials)
	dir = w.resolvePath(r.Dir)
	args := []string{"clone", "--quiet"}
	commit := commitPattern().MatchString(r.Ref)
	if r.Ref != "" && !commit {
		args = append(args, "--branch", r.Ref)
	}
	if r.Depth > 0 && !commit {
		args = append(args, "--depth", strconv.Itoa(r.Depth))
	}
	if err := w.gitDone(ctx, "clone", w.o.Dir, env, append(args, "--", r.URL, dir)...); err != nil || !commit {
		return dir, err
	}
	return dir, w.gitDone(ctx, "checkout", dir, env, "checkout", "--quiet", "--detach", r.Ref)
}

// withDefaults returns the repository with its defaults.
func (r Repository) withDefaults() (Repository, error) {
	if r.URL == "" || strings.HasPrefix(r.URL, "-") || strings.HasPrefix(r.Ref, "-") {
		return r, sandpit.Errorf(sandpit.Invalid, "git: the URL is missing, or it or the ref begins with a dash")
	}
	if u, err := url.Parse(r.URL); err == nil && u.User != nil && (u.Scheme == "http" || u.Scheme == "https") {
		password, _ := u.User.Password()
		r.Username, r.Password = cmp.Or(r.Username, u.User.Username()), cmp.Or(r.Password, password)
		u.User = nil // git would store it
		r.URL = u.String()
	}
	if r.Dir == "" {
		r.Dir = strings.TrimSuffix(path.Base(strings.TrimSuffix(r.URL, "/")), ".git")
	}
	return r, nil
}

func (w *Workspace) gitDone(ctx context.Context, what, dir string, env map[string]string, args ...string) error {
	result, err := w.Git(ctx, dir, env, args...)
	if err != nil {
		return err
	}
	if result.ExitCode != 0 {
		return GitError(what, result)
	}
	return nil
}

// Git runs the sandbox's git in a directory, with output for programs and without prompts. An
// exit code other than 0 is not an error.
//
// NotFound: the sandbox has no git, or no such directory. Also the errors of Run.
func (w *Workspace) Git(ctx context.Context, dir string, env map[string]string, args ...string) (Result, error) {
	all := map[string]string{"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "http:https:ssh:git:file"}
	maps.Copy(all, env)
	result, err := w.Run(ctx, sandpit.Command{Args: append([]string{"git"}, args...), Dir: dir, Env: all})
	if sandpit.CodeOf(err) == sandpit.NotFound {
		err = sandpit.WithHint(err, "the image has no git; install it, or use an image with git")
	}
	return result, err
}

// refusalTexts returns parts of git's messages about missing or wrong credentials.
func refusalTexts() []string {
	return []string{
		"Authentication failed", "could not read Username", "could not read Password", "Permission denied (publickey", "error: 401", "error: 403",
	}
}

// GitError returns the error for a git that ended with another exit code than 0.
func GitError(what string, r Result) error {
	said := strings.TrimSpace(r.Stderr + "\n" + r.Stdout)
	said = strings.ToValidUTF8(said[:min(len(said), 2000)], "?")
	for _, mark := range refusalTexts() {
		if strings.Contains(said, mark) {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Unauthenticated, "git %s: the remote refuses the credentials: %s", what, said), "use credentials with the necessary permission")
		}
	}
	if strings.Contains(said, "not a git repository") {
		return sandpit.Errorf(sandpit.NotFound, "git %s: %s", what, said)
	}
	return sandpit.Errorf(sandpit.Conflict, "git %s: exit status %d: %s", what, r.ExitCode, said)
}

// GitCredentials returns an environment in which git has credentials for the host of a
// remote. They are neither in arguments nor in a file. It is empty without a password.
//
// Invalid: the remote is not an http or https URL.
func GitCredentials(remote, user, password string) (map[string]string, error) {
	if password == "" {
		return map[string]string{}, nil
	}
	u, err := url.Parse(remote)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" {
		return nil, sandpit.Errorf(sandpit.Invalid, "git: credentials need an http or https URL")
	}
	if user == "" {
		user = "x-access-token"
	}
	return map[string]string{
		"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": fmt.Sprintf("http.%s://%s/.extraHeader", u.Scheme, u.Host),
		"GIT_CONFIG_VALUE_0": "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password)),
	}, nil
}
