package toolbox

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// gitTimeout bounds one git command.
const gitTimeout = 30 * time.Minute

// gitHandlers serve the calls on git repositories.
type gitHandlers struct{}

// registerGit adds the calls on git repositories.
func (s *Server) registerGit(mux api.Router) {
	for pattern, h := range map[string]handler{
		"POST /git/clone":       gitHandlers{}.cloneRepository,
		"POST /git/init":        gitHandlers{}.initRepository,
		"GET /git/status":       gitHandlers{}.getGitStatus,
		"GET /git/branches":     gitHandlers{}.listBranches,
		"POST /git/branches":    gitHandlers{}.createBranch,
		"DELETE /git/branches":  gitHandlers{}.deleteBranch,
		"POST /git/checkout":    gitHandlers{}.checkoutBranch,
		"POST /git/add":         gitHandlers{}.addToIndex,
		"POST /git/commit":      gitHandlers{}.commitChanges,
		"GET /git/history":      gitHandlers{}.getHistory,
		"POST /git/reset":       gitHandlers{}.resetChanges,
		"POST /git/restore":     gitHandlers{}.restoreFiles,
		"POST /git/pull":        gitHandlers{}.pullChanges,
		"POST /git/push":        gitHandlers{}.pushChanges,
		"GET /git/remotes":      gitHandlers{}.listRemotes,
		"POST /git/remotes":     gitHandlers{}.addRemote,
		"GET /git/config":       gitHandlers{}.getGitConfig,
		"POST /git/config":      gitHandlers{}.setGitConfig,
		"POST /git/config/user": gitHandlers{}.configureUser,
		"POST /git/credentials": gitHandlers{}.storeCredentials,
	} {
		s.handle(mux, pattern, h)
	}
}

// repository is a git repository in the sandbox.
type repository struct {
	call *call
	dir  string
	// env is the environment of git, with credentials for example.
	env map[string]string
}

// openRepository returns the repository of a path.
func (c *call) openRepository(ctx context.Context, p string) (*repository, error) {
	dir, err := c.filePath(ctx, "path", p)
	if err != nil {
		return nil, err
	}
	return &repository{call: c, dir: dir}, nil
}

// queryRepository returns the repository of the path in the query.
func (c *call) queryRepository(ctx context.Context) (*repository, error) {
	return c.openRepository(ctx, c.r.URL.Query().Get("path"))
}

// try runs git in the repository. An exit code other than 0 is not an error.
func (r *repository) try(ctx context.Context, args ...string) (workspace.Result, error) {
	w, err := r.call.newWorkspace(gitTimeout)
	if err != nil {
		return workspace.Result{}, err
	}
	// With -C, git itself reports that there is no such directory.
	result, err := w.Git(ctx, "/", r.env, append([]string{"-C", r.dir}, args...)...)
	if err == nil && result.Truncated {
		err = sandpit.Errorf(sandpit.Exhausted, "git %s: the output is larger than %d bytes", args[0], maxProgramOutput)
	}
	return result, toGitError(err)
}

// run runs git in the repository and returns its output. what names the action in errors.
func (r *repository) run(ctx context.Context, what string, args ...string) (string, error) {
	result, err := r.try(ctx, args...)
	if err == nil && result.ExitCode != 0 {
		err = toGitError(workspace.GitError(what, result))
	}
	return result.Stdout, err
}

// checkGitName refuses names that git would take for an option.
func checkGitName(field, name string) error {
	if name == "" || strings.HasPrefix(name, "-") || strings.ContainsAny(name, "\x00\n") {
		return sandpit.Errorf(sandpit.Invalid, "invalid %s %.100q", field, name)
	}
	return nil
}

// gitFailure is a kind of failure that clients distinguish, and texts of git by which it is known.
type gitFailure struct {
	code   string
	status int
	texts  []string
}

// gitFailures returns the kinds of failures, the most specific first.
func gitFailures() []gitFailure {
	return []gitFailure{
		{"GIT_REMOTE_REJECTED", http.StatusUnprocessableEntity, []string{"[remote rejected]", "hook declined", "protected branch"}},
		{"GIT_BRANCH_NOT_FOUND", http.StatusNotFound, []string{"src refspec"}},
		{"FILE_NOT_FOUND", http.StatusNotFound, []string{"did not match any files", "error: pathspec"}},
		{"GIT_PUSH_REJECTED", http.StatusConflict, []string{"[rejected]", "non-fast-forward", "failed to push some refs"}},
		{"GIT_MERGE_CONFLICT", http.StatusConflict, []string{"CONFLICT (", "Automatic merge failed", "you have unmerged files", "unmerged paths"}},
		{"GIT_DIRTY_WORKTREE", http.StatusConflict, []string{"would be overwritten by", "Please commit your changes", "local changes"}},
		{"GIT_BRANCH_EXISTS", http.StatusConflict, []string{"a branch named"}},
		{"GIT_BRANCH_NOT_FOUND", http.StatusNotFound, []string{
			"Remote branch", "couldn't find remote ref", "error: branch '", "invalid reference", "reference is not a tree",
		}},
		{"GIT_REPO_NOT_FOUND", http.StatusNotFound, []string{
			"not a git repository", "cannot change to", "Repository not found", "' does not exist", "does not appear to be a git repository", "' not found",
		}},
		{"GIT_TRANSPORT_FAILED", http.StatusBadGateway, []string{
			"Could not resolve host", "unable to access", "unable to connect", "Connection refused", "Connection timed out", "Could not read from remote",
		}},
		{"CONFLICT", http.StatusConflict, []string{"already exists"}},
	}
}

// toGitError adds the code and the status of a failure of git.
func toGitError(err error) error {
	switch sandpit.CodeOf(err) {
	case sandpit.Unauthenticated:
		return withStatus(err, http.StatusUnauthorized, "GIT_AUTH_FAILED")
	case sandpit.Conflict, sandpit.NotFound:
	default:
		return err
	}
	text := err.Error()
	for _, kind := range gitFailures() {
		for _, part := range kind.texts {
			if strings.Contains(text, part) {
				return withStatus(err, kind.status, kind.code)
			}
		}
	}
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "the sandbox has no git: %w", err), sandpit.HintOf(err))
	}
	return withStatus(err, http.StatusBadRequest, "")
}

// gitPath is the body of calls on a repository, or on one of its branches or remotes.
type gitPath struct {
	Path string `json:"path"`
}
