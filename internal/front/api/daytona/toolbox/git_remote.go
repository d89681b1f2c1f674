package toolbox

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// cloneRequest is the body of a clone.
type cloneRequest struct {
	gitPath

	URL             string `json:"url"`
	Branch          string `json:"branch"`
	CommitID        string `json:"commit_id"`
	Depth           int    `json:"depth"`
	Username        string `json:"username"`
	Password        string `json:"password"`
	InsecureSkipTLS bool   `json:"insecure_skip_tls"`
}

// cloneRepository clones a repository. Credentials are only in git's environment while it runs.
func (gitHandlers) cloneRepository(ctx context.Context, c *call) error {
	var req cloneRequest
	if err := c.readBody(&req); err != nil {
		return err
	}
	dir, err := c.filePath(ctx, "path", req.Path)
	if err != nil {
		return err
	}
	if req.CommitID != "" {
		if err := checkGitName("commit_id", req.CommitID); err != nil {
			return err
		}
		req.Depth = 0 // the commit may be an early one
	}
	w, err := c.newWorkspace(gitTimeout)
	if err != nil {
		return err
	}
	source := workspace.Repository{
		URL: req.URL, Ref: req.Branch, Dir: dir, Depth: req.Depth, Username: req.Username, Password: req.Password, Env: map[string]string{},
	}
	if req.InsecureSkipTLS {
		source.Env["GIT_SSL_NO_VERIFY"] = "true"
	}
	if _, err := w.Clone(ctx, source); err != nil {
		return toGitError(err)
	}
	if req.CommitID != "" {
		r := &repository{call: c, dir: dir}
		if _, err := r.run(ctx, "checkout", "checkout", "--quiet", "--detach", req.CommitID, "--"); err != nil {
			return err
		}
	}
	return c.writeEmpty(http.StatusOK)
}

// transferRequest is the body of a pull or push.
type transferRequest struct {
	gitPath

	Remote      string `json:"remote"`
	Branch      string `json:"branch"`
	Username    string `json:"username"`
	Password    string `json:"password"`
	SetUpstream bool   `json:"set_upstream"`
}

// openRemote reads a transferRequest, and returns its repository with the credentials for the
// remote. option selects the URL for pushes.
func (c *call) openRemote(ctx context.Context, option ...string) (*repository, transferRequest, error) {
	var req transferRequest
	if err := c.readBody(&req); err != nil {
		return nil, req, err
	}
	remote := cmp.Or(req.Remote, "origin")
	if err := checkGitName("remote", remote); err != nil {
		return nil, req, err
	}
	if strings.HasPrefix(req.Branch, "-") || strings.ContainsAny(req.Branch, ":+ \x00\n") {
		return nil, req, sandpit.Errorf(sandpit.Invalid, "invalid branch %.100q", req.Branch)
	}
	r, err := c.openRepository(ctx, req.Path)
	if err != nil {
		return nil, req, err
	}
	address, err := r.run(ctx, "find remote", append(append([]string{"remote", "get-url"}, option...), "--", remote)...)
	if err != nil {
		return nil, req, err
	}
	r.env, err = workspace.GitCredentials(strings.TrimSpace(address), req.Username, req.Password)
	return r, req, err
}

// pullChanges merges a branch of a remote: the given one, else the upstream branch of the current
// branch, else the one of its name.
func (gitHandlers) pullChanges(ctx context.Context, c *call) error {
	r, req, err := c.openRemote(ctx)
	if err != nil {
		return err
	}
	if err := r.setIdentity(ctx); err != nil {
		return err
	}
	source, err := r.pullSource(ctx, req)
	if err != nil {
		return err
	}
	_, err = r.run(ctx, "pull", append([]string{"pull", "--quiet", "--no-rebase", "--no-edit", "--"}, source...)...)
	return c.writeDone(err)
}

// pullSource returns the remote and the branch of a pull; nothing stands for the upstream branch.
func (r *repository) pullSource(ctx context.Context, req transferRequest) ([]string, error) {
	if req.Branch == "" && req.Remote == "" {
		upstream, err := r.try(ctx, "rev-parse", "--abbrev-ref", "@{upstream}")
		if err != nil || upstream.ExitCode == 0 {
			return nil, err
		}
	}
	branch, err := req.Branch, error(nil)
	if branch == "" {
		branch, err = r.currentBranch(ctx)
	}
	if err == nil && branch == "" {
		err = sandpit.Errorf(sandpit.Conflict, "pull: no branch is checked out; name one")
	}
	return []string{cmp.Or(req.Remote, "origin"), branch}, err
}

// setIdentity gives merges an author if the repository configures none.
func (r *repository) setIdentity(ctx context.Context) error {
	result, err := r.try(ctx, "config", "user.email")
	if err != nil || result.ExitCode == 0 {
		return err
	}
	const name, email = "Daytona", "daytona@localhost"
	env := map[string]string{"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": email, "GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": email}
	maps.Copy(env, r.env)
	r.env = env
	return nil
}

// pushChanges pushes a branch, by default the current one, and never by force.
func (gitHandlers) pushChanges(ctx context.Context, c *call) error {
	r, req, err := c.openRemote(ctx, "--push")
	if err != nil {
		return err
	}
	args := []string{"push", "--porcelain"}
	if req.SetUpstream {
		args = append(args, "--set-upstream")
	}
	_, err = r.run(ctx, "push", append(args, "--", cmp.Or(req.Remote, "origin"), cmp.Or(req.Branch, "HEAD"))...)
	return c.writeDone(err)
}

// writeDone responds without a body to a call that has succeeded.
func (c *call) writeDone(err error) error {
	if err != nil {
		return err
	}
	return c.writeEmpty(http.StatusOK)
}

// remoteInfo is a remote of a repository.
type remoteInfo struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// remoteList has the remotes of a repository.
type remoteList struct {
	Remotes []remoteInfo `json:"remotes"`
}

func (gitHandlers) listRemotes(ctx context.Context, c *call) error {
	r, err := c.queryRepository(ctx)
	if err != nil {
		return err
	}
	out, err := r.run(ctx, "list remotes", "remote", "--verbose")
	if err != nil {
		return err
	}
	list := remoteList{Remotes: []remoteInfo{}}
	for line := range strings.Lines(out) {
		name, address, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if address, found := strings.CutSuffix(address, " (fetch)"); found {
			list.Remotes = append(list.Remotes, remoteInfo{name, address})
		}
	}
	return c.writeJSON(http.StatusOK, list)
}

// remoteRequest is the body of the addition of a remote.
type remoteRequest struct {
	gitPath

	Name      string `json:"name"`
	URL       string `json:"url"`
	Fetch     bool   `json:"fetch"`
	Overwrite bool   `json:"overwrite"`
}

func (gitHandlers) addRemote(ctx context.Context, c *call) error {
	var req remoteRequest
	if err := c.readBody(&req); err != nil {
		return err
	}
	for field, value := range map[string]string{"name": req.Name, "url": req.URL} {
		if err := checkGitName(field, value); err != nil {
			return err
		}
	}
	r, err := c.openRepository(ctx, req.Path)
	if err != nil {
		return err
	}
	action := "add"
	if req.Overwrite {
		known, err := r.try(ctx, "remote", "get-url", "--", req.Name)
		if err != nil {
			return err
		}
		if known.ExitCode == 0 {
			action = "set-url"
		}
	}
	if _, err := r.run(ctx, "add remote", "remote", action, "--", req.Name, req.URL); err != nil {
		return err
	}
	if req.Fetch {
		if _, err := r.run(ctx, "fetch", "fetch", "--quiet", "--", req.Name); err != nil {
			return err
		}
	}
	return c.writeEmpty(http.StatusCreated)
}
