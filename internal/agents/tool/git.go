package tool

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

func gitTools() []Tool {
	repo := map[string]string{"path": "repo_path", "repo": "repo_path"}
	return []Tool{
		{
			Name: "git_clone", Title: "Clone a repository", Category: Git, Hints: Hints{OpenWorld: true}, Timeout: 10 * time.Minute,
			Description: "Clone a git repository into the sandbox. Credentials are used only for this call and are not stored.",
			function:    newFunction(gitClone), synonyms: map[string]string{"repo_url": "url", "target_path": "destination", "path": "destination"},
		}, {
			Name: "git_status", Title: "Show the state of a repository", Category: Git, Hints: Hints{ReadOnly: true, Idempotent: true},
			Description: "Return the branch, how far it is ahead or behind, and the staged, changed and untracked files.",
			function:    newFunction(gitStatus), synonyms: repo,
		}, {
			Name: "git_commit", Title: "Commit", Category: Git, Hints: Hints{},
			Description: "Commit files, by default all changed files.",
			function:    newFunction(gitCommit), synonyms: repo,
		}, {
			Name: "git_push", Title: "Push", Category: Git, Hints: Hints{OpenWorld: true}, Timeout: 10 * time.Minute,
			Description: "Push a branch to a remote, never by force. Credentials are used only for this call and are not stored.",
			function:    newFunction(gitPush), synonyms: repo,
		},
	}
}

type credentials struct {
	Username string `json:"username,omitempty" jsonschema:"default: the user name for tokens"`
	Password string `json:"password,omitempty" jsonschema:"password or token"`
}

// gitTimeout bounds one git command.
const gitTimeout = 9 * time.Minute

// runGit runs git in a directory with the environment of the session.
func (s *Session) runGit(ctx context.Context, dir string, env map[string]string, args ...string) (workspace.Result, error) {
	all := s.environment()
	maps.Copy(all, env)
	return s.gitFiles.Git(ctx, dir, all, args...)
}

// credentialEnv returns an environment with credentials for git, and masks them in all results.
func (s *Session) credentialEnv(remote string, c *credentials) (map[string]string, error) {
	if c == nil {
		return map[string]string{}, nil
	}
	env, err := workspace.GitCredentials(remote, c.Username, c.Password)
	s.secretSet().hide(c.Password)
	_, encoded, _ := strings.Cut(env["GIT_CONFIG_VALUE_0"], "Basic ")
	s.secretSet().hide(encoded)
	return env, err
}

type cloneInput struct {
	URL         string       `json:"url" jsonschema:"address of the repository: https://, http://, ssh://, git:// or a path in the sandbox"`
	Destination string       `json:"destination,omitempty" jsonschema:"directory to clone into; default: the repository's name"`
	Branch      string       `json:"branch,omitempty" jsonschema:"branch or tag; default: the remote's"`
	Depth       int          `json:"depth,omitempty" jsonschema:"number of commits of history; 0 means all" default:"0" range:"0,"`
	Credentials *credentials `json:"credentials,omitempty" jsonschema:"for private repositories"`
}

type cloneData struct {
	Path   string `json:"path"`
	Commit string `json:"commit"`
	Branch string `json:"branch"`
	Files  int    `json:"files"`
}

func gitClone(ctx context.Context, s *Session, in cloneInput) (Result, error) {
	r := workspace.Repository{URL: in.URL, Ref: in.Branch, Dir: in.Destination, Depth: in.Depth, Env: s.environment()}
	if u, err := url.Parse(in.URL); err == nil && u.User != nil && in.Credentials == nil {
		password, _ := u.User.Password()
		in.Credentials = &credentials{Username: u.User.Username(), Password: password}
	}
	if c := in.Credentials; c != nil {
		r.Username, r.Password = c.Username, c.Password
		if _, err := s.credentialEnv(in.URL, c); err != nil { // to mask the credentials
			return Result{}, err
		}
	}
	dir, err := s.gitFiles.Clone(ctx, r)
	if err != nil {
		return Result{}, err
	}
	return s.cloneResult(ctx, dir)
}

func (s *Session) cloneResult(ctx context.Context, dir string) (Result, error) {
	data := cloneData{Path: dir}
	for _, ask := range []struct {
		into *string
		args []string
	}{{&data.Commit, []string{"rev-parse", "HEAD"}}, {&data.Branch, []string{"rev-parse", "--abbrev-ref", "HEAD"}}} {
		r, err := s.runGit(ctx, dir, nil, ask.args...)
		if err != nil {
			return Result{}, err
		}
		if r.ExitCode == 0 { // an empty repository has neither
			*ask.into = strings.TrimSpace(r.Stdout)
		}
	}
	r, err := s.runGit(ctx, dir, nil, "ls-files", "-z")
	if err != nil {
		return Result{}, err
	}
	data.Files = strings.Count(r.Stdout, "\x00")
	return Result{Text: fmt.Sprintf("Cloned into %s: %d files, %s at %.12s", dir, data.Files, data.Branch, data.Commit), Data: data}, nil
}

type repoInput struct {
	Repo string `json:"repo_path,omitempty" jsonschema:"directory of the repository" default:"."`
}

type statusData struct {
	Branch    string   `json:"branch"`
	Upstream  string   `json:"upstream,omitempty"`
	Ahead     int      `json:"ahead"`
	Behind    int      `json:"behind"`
	Staged    []string `json:"staged"`
	Unstaged  []string `json:"unstaged"`
	Untracked []string `json:"untracked"`
	Conflicts []string `json:"conflicts,omitempty"`
	Clean     bool     `json:"clean"`
}

func gitStatus(ctx context.Context, s *Session, in repoInput) (Result, error) {
	r, err := s.runGit(ctx, s.absPath(in.Repo), nil, "status", "--porcelain=v2", "--branch", "-z")
	if err != nil {
		return Result{}, err
	}
	if r.ExitCode != 0 {
		return Result{}, workspace.GitError("status", r)
	}
	data := parseStatus(r.Stdout)
	return Result{Text: data.toText(), Data: data}, nil
}

// parseStatus parses the output of git status --porcelain=v2 --branch -z.
func parseStatus(out string) statusData {
	data := statusData{Staged: []string{}, Unstaged: []string{}, Untracked: []string{}}
	records := strings.Split(out, "\x00")
	for i := 0; i < len(records); i++ {
		kind, rest, _ := strings.Cut(records[i], " ")
		switch kind {
		case "#":
			data.addHeader(rest)
		case "?":
			data.Untracked = append(data.Untracked, rest)
		case "u":
			data.Conflicts = append(data.Conflicts, fieldAfter(rest, 9))
		case "1":
			data.addChanged(rest, fieldAfter(rest, 7))
		case "2": // renamed: the old name is the next record
			data.addChanged(rest, fieldAfter(rest, 8))
			i++
		}
	}
	data.Clean = len(data.Staged)+len(data.Unstaged)+len(data.Untracked)+len(data.Conflicts) == 0
	return data
}

// fieldAfter returns the text after n words.
func fieldAfter(rest string, n int) string {
	for range n {
		_, after, found := strings.Cut(rest, " ")
		if !found {
			return ""
		}
		rest = after
	}
	return rest
}

func (d *statusData) addHeader(line string) {
	name, value, _ := strings.Cut(line, " ")
	switch name {
	case "branch.head":
		d.Branch = value
	case "branch.upstream":
		d.Upstream = value
	case "branch.ab":
		_, _ = fmt.Sscanf(value, "+%d -%d", &d.Ahead, &d.Behind) // 0 if git writes something else
	}
}

func (d *statusData) addChanged(rest, name string) {
	if len(rest) < 2 {
		return
	}
	if rest[0] != '.' {
		d.Staged = append(d.Staged, name)
	}
	if rest[1] != '.' {
		d.Unstaged = append(d.Unstaged, name)
	}
}

func (d statusData) toText() string {
	var b strings.Builder
	fmt.Fprintf(&b, "On %s", d.Branch)
	if d.Upstream != "" {
		fmt.Fprintf(&b, ", %d ahead of and %d behind %s", d.Ahead, d.Behind, d.Upstream)
	}
	for _, part := range []struct {
		title string
		files []string
	}{{"staged", d.Staged}, {"changed", d.Unstaged}, {"untracked", d.Untracked}, {"in conflict", d.Conflicts}} {
		if len(part.files) > 0 {
			fmt.Fprintf(&b, "\n%s:\n  %s", part.title, strings.Join(part.files, "\n  "))
		}
	}
	if d.Clean {
		b.WriteString("\nnothing to commit")
	}
	return b.String()
}

type commitInput struct {
	Repo    string   `json:"repo_path,omitempty" jsonschema:"directory of the repository" default:"."`
	Message string   `json:"message" jsonschema:"commit message"`
	Files   []string `json:"files,omitempty" jsonschema:"files to commit; default: all changed files"`
	Author  string   `json:"author,omitempty" jsonschema:"author as Name <address>; default: the repository's setting, else Agent"`
}

type commitData struct {
	Committed bool   `json:"committed"`
	Commit    string `json:"commit,omitempty"`
}

func gitCommit(ctx context.Context, s *Session, in commitInput) (Result, error) {
	if strings.TrimSpace(in.Message) == "" {
		return Result{}, sandpit.Errorf(sandpit.Invalid, "the message is empty")
	}
	dir := s.absPath(in.Repo)
	add := []string{"add", "--all", "--"}
	if len(in.Files) > 0 {
		add = append(add, in.Files...)
	}
	if r, err := s.runGit(ctx, dir, nil, add...); err != nil || r.ExitCode != 0 {
		return Result{}, gitError(err, "add", r)
	}
	r, err := s.runGit(ctx, dir, nil, "diff", "--cached", "--quiet")
	if err != nil {
		return Result{}, err
	}
	if r.ExitCode == 0 {
		return Result{Text: "Nothing to commit", Data: commitData{}}, nil
	}
	env, err := s.authorEnv(ctx, dir, in.Author)
	if err != nil {
		return Result{}, err
	}
	if r, err := s.runGit(ctx, dir, env, "commit", "--quiet", "--message="+in.Message); err != nil || r.ExitCode != 0 {
		return Result{}, gitError(err, "commit", r)
	}
	r, err = s.runGit(ctx, dir, nil, "rev-parse", "HEAD")
	if err != nil || r.ExitCode != 0 {
		return Result{}, gitError(err, "commit", r)
	}
	hash := strings.TrimSpace(r.Stdout)
	return Result{Text: "Committed " + hash, Data: commitData{Committed: true, Commit: hash}}, nil
}

func gitError(err error, what string, r workspace.Result) error {
	if err != nil {
		return err
	}
	return workspace.GitError(what, r)
}

// authorEnv returns an environment with the author, unless the repository configures one.
func (s *Session) authorEnv(ctx context.Context, dir, author string) (map[string]string, error) {
	name, address := "Agent", "agent@localhost"
	if author != "" {
		before, after, found := strings.Cut(author, "<")
		name, address = strings.TrimSpace(before), strings.TrimSuffix(strings.TrimSpace(after), ">")
		if !found || name == "" || address == "" {
			return nil, sandpit.Errorf(sandpit.Invalid, "author %.200q: want Name <address>", author)
		}
	} else {
		r, err := s.runGit(ctx, dir, nil, "config", "user.email")
		if err != nil || r.ExitCode == 0 {
			return nil, err
		}
	}
	return map[string]string{
		"GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": address, "GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": address,
	}, nil
}

type pushInput struct {
	Repo        string       `json:"repo_path,omitempty" jsonschema:"directory of the repository" default:"."`
	Remote      string       `json:"remote,omitempty" jsonschema:"name of the remote" default:"origin"`
	Branch      string       `json:"branch,omitempty" jsonschema:"the branch; default: the current one"`
	Credentials *credentials `json:"credentials,omitempty" jsonschema:"for remotes that require them"`
}

type pushData struct {
	Remote string   `json:"remote"`
	Refs   []string `json:"refs"`
}

func gitPush(ctx context.Context, s *Session, in pushInput) (Result, error) {
	if strings.HasPrefix(in.Remote, "-") || strings.ContainsAny(in.Branch, ":+ ") || strings.HasPrefix(in.Branch, "-") {
		return Result{}, sandpit.Errorf(sandpit.Invalid, "invalid name of a remote or branch")
	}
	dir := s.absPath(in.Repo)
	r, err := s.runGit(ctx, dir, nil, "remote", "get-url", "--push", "--", in.Remote)
	if err != nil || r.ExitCode != 0 {
		return Result{}, gitError(err, "push", r)
	}
	env, err := s.credentialEnv(strings.TrimSpace(r.Stdout), in.Credentials)
	if err != nil {
		return Result{}, err
	}
	branch := in.Branch
	if branch == "" {
		branch = "HEAD"
	}
	r, err = s.runGit(ctx, dir, env, "push", "--porcelain", "--", in.Remote, branch)
	if err != nil || r.ExitCode != 0 {
		return Result{}, gitError(err, "push", r)
	}
	data := pushData{Remote: in.Remote, Refs: []string{}}
	for line := range strings.Lines(r.Stdout) {
		// A flag, what was pushed to what, and a summary.
		if parts := strings.Split(line, "\t"); len(parts) == 3 {
			_, ref, _ := strings.Cut(parts[1], ":")
			data.Refs = append(data.Refs, ref)
		}
	}
	return Result{Text: "Pushed " + strings.Join(data.Refs, ", ") + " to " + in.Remote, Data: data}, nil
}
