package toolbox

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// initRequest is the body of the creation of a repository.
type initRequest struct {
	gitPath

	Bare          bool   `json:"bare"`
	InitialBranch string `json:"initial_branch"`
}

func (gitHandlers) initRepository(ctx context.Context, c *call) error {
	var req initRequest
	if err := c.readBody(&req); err != nil {
		return err
	}
	dir, err := c.filePath(ctx, "path", req.Path)
	if err != nil {
		return err
	}
	args := []string{"init", "--quiet"}
	if req.Bare {
		args = append(args, "--bare")
	}
	if req.InitialBranch != "" {
		args = append(args, "--initial-branch="+req.InitialBranch)
	}
	r := &repository{call: c, dir: "/"} // dir may not exist yet
	if _, err := r.run(ctx, "init", append(args, "--", dir)...); err != nil {
		return err
	}
	return c.writeEmpty(http.StatusCreated)
}

// gitStatus is the state of a repository.
type gitStatus struct {
	CurrentBranch   string       `json:"currentBranch"`
	Detached        bool         `json:"detached"`
	Upstream        string       `json:"upstream,omitempty"`
	BranchPublished bool         `json:"branchPublished"`
	Ahead           int          `json:"ahead"`
	Behind          int          `json:"behind"`
	FileStatus      []fileStatus `json:"fileStatus"`
}

// fileStatus is the state of a changed file.
type fileStatus struct {
	Name     string `json:"name"`
	Staging  string `json:"staging"`
	Worktree string `json:"worktree"`
	// Extra is the earlier name of a renamed or copied file.
	Extra string `json:"extra"`
}

func (gitHandlers) getGitStatus(ctx context.Context, c *call) error {
	r, err := c.queryRepository(ctx)
	if err != nil {
		return err
	}
	out, err := r.run(ctx, "status", "status", "--porcelain=v2", "--branch", "--untracked-files=all", "-z")
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, parseGitStatus(out))
}

// parseGitStatus parses the output of git status --porcelain=v2 --branch -z.
func parseGitStatus(out string) gitStatus {
	status := gitStatus{FileStatus: []fileStatus{}}
	records := strings.Split(out, "\x00")
	for i := 0; i < len(records); i++ {
		kind, rest, _ := strings.Cut(records[i], " ")
		switch kind {
		case "#":
			status.addHeader(rest)
		case "?":
			status.FileStatus = append(status.FileStatus, fileStatus{Name: rest, Staging: "Untracked", Worktree: "Untracked"})
		case "1":
			status.addFile(rest, 7, "")
		case "u":
			status.addFile(rest, 9, "")
		case "2": // the next record is the earlier name
			i++
			status.addFile(rest, 8, records[min(i, len(records)-1)])
		}
	}
	return status
}

// addHeader adds a line about the branch.
func (s *gitStatus) addHeader(line string) {
	name, value, _ := strings.Cut(line, " ")
	switch name {
	case "branch.head":
		s.CurrentBranch = value
		if value == "(detached)" {
			s.CurrentBranch, s.Detached = "HEAD", true
		}
	case "branch.upstream":
		s.Upstream = value
	case "branch.ab": // only if the upstream branch exists
		s.BranchPublished = true
		_, _ = fmt.Sscanf(value, "+%d -%d", &s.Ahead, &s.Behind) // 0 if git writes something else
	}
}

// addFile adds a changed file. Its name follows a number of fields, of which the first has a
// letter each for the index and the working tree.
func (s *gitStatus) addFile(rest string, fields int, earlier string) {
	parts := strings.SplitN(rest, " ", fields+1)
	if len(parts) <= fields || len(parts[0]) != 2 {
		return
	}
	s.FileStatus = append(s.FileStatus, fileStatus{
		Name: parts[fields], Staging: changeName(parts[0][0]), Worktree: changeName(parts[0][1]), Extra: earlier,
	})
}

// changeName returns the name of git's letter for a change.
func changeName(letter byte) string {
	switch letter {
	case 'M', 'T':
		return "Modified"
	case 'A':
		return "Added"
	case 'D':
		return "Deleted"
	case 'R':
		return "Renamed"
	case 'C':
		return "Copied"
	case 'U':
		return "Updated but unmerged"
	}
	return "Unmodified"
}

// branchList has the branches of a repository.
type branchList struct {
	Branches []string `json:"branches"`
	// Current is "" if no branch is checked out.
	Current string `json:"current,omitempty"`
}

func (gitHandlers) listBranches(ctx context.Context, c *call) error {
	r, err := c.queryRepository(ctx)
	if err != nil {
		return err
	}
	out, err := r.run(ctx, "list branches", "for-each-ref", "--format=%(refname:short)", "refs/heads")
	if err != nil {
		return err
	}
	list := branchList{Branches: []string{}}
	for line := range strings.Lines(out) {
		list.Branches = append(list.Branches, strings.TrimSuffix(line, "\n"))
	}
	if list.Current, err = r.currentBranch(ctx); err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, list)
}

// currentBranch returns the branch that is checked out, or "".
func (r *repository) currentBranch(ctx context.Context) (string, error) {
	result, err := r.try(ctx, "symbolic-ref", "--quiet", "--short", "HEAD")
	if err != nil || result.ExitCode != 0 {
		return "", err
	}
	return strings.TrimSpace(result.Stdout), nil
}

// branchRequest is the body of calls on a branch.
type branchRequest struct {
	gitPath

	Name   string `json:"name"`
	Branch string `json:"branch"` // of a checkout
}

// openBranch reads a branchRequest, and returns its repository and branch.
func (c *call) openBranch(ctx context.Context) (*repository, string, error) {
	var req branchRequest
	if err := c.readBody(&req); err != nil {
		return nil, "", err
	}
	name := cmp.Or(req.Name, req.Branch)
	if err := checkGitName("branch", name); err != nil {
		return nil, "", err
	}
	r, err := c.openRepository(ctx, req.Path)
	return r, name, err
}

func (gitHandlers) createBranch(ctx context.Context, c *call) error {
	r, name, err := c.openBranch(ctx)
	if err != nil {
		return err
	}
	if _, err := r.run(ctx, "create branch", "branch", "--", name); err != nil {
		return err
	}
	return c.writeEmpty(http.StatusCreated)
}

func (gitHandlers) deleteBranch(ctx context.Context, c *call) error {
	r, name, err := c.openBranch(ctx)
	if err != nil {
		return err
	}
	current, err := r.currentBranch(ctx)
	if err != nil {
		return err
	}
	if current == name {
		return sandpit.Errorf(sandpit.Conflict, "delete branch %.100q: it is checked out", name)
	}
	if _, err := r.run(ctx, "delete branch", "branch", "--delete", "--force", "--", name); err != nil {
		return err
	}
	return c.writeEmpty(http.StatusNoContent)
}

func (gitHandlers) checkoutBranch(ctx context.Context, c *call) error {
	r, name, err := c.openBranch(ctx)
	if err != nil {
		return err
	}
	if _, err := r.run(ctx, "checkout", "checkout", "--quiet", name, "--"); err != nil {
		return err
	}
	return c.writeEmpty(http.StatusOK)
}

// filesRequest is the body of calls on files of a repository.
type filesRequest struct {
	gitPath

	Files []string `json:"files"`
	// Staged, Worktree and Source are those of a restore, Mode and Target those of a reset.
	Staged   *bool  `json:"staged"`
	Worktree *bool  `json:"worktree"`
	Source   string `json:"source"`
	Mode     string `json:"mode"`
	Target   string `json:"target"`
}

func (gitHandlers) addToIndex(ctx context.Context, c *call) error {
	var req filesRequest
	if err := c.readBody(&req); err != nil {
		return err
	}
	if len(req.Files) == 0 {
		return sandpit.Errorf(sandpit.Invalid, "files is missing")
	}
	r, err := c.openRepository(ctx, req.Path)
	if err != nil {
		return err
	}
	if _, err := r.run(ctx, "add", append([]string{"add", "--"}, req.Files...)...); err != nil {
		return err
	}
	return c.writeEmpty(http.StatusOK)
}

func (gitHandlers) resetChanges(ctx context.Context, c *call) error {
	var req filesRequest
	if err := c.readBody(&req); err != nil {
		return err
	}
	mode, target := cmp.Or(req.Mode, "mixed"), cmp.Or(req.Target, "HEAD")
	if !slices.Contains([]string{"soft", "mixed", "hard", "merge", "keep"}, mode) {
		return sandpit.Errorf(sandpit.Invalid, "mode %.20q: want soft, mixed, hard, merge or keep", mode)
	}
	if len(req.Files) > 0 && mode != "mixed" {
		return sandpit.Errorf(sandpit.Invalid, "mode %s cannot reset single files", mode)
	}
	if err := checkGitName("target", target); err != nil {
		return err
	}
	r, err := c.openRepository(ctx, req.Path)
	if err != nil {
		return err
	}
	args := []string{"reset", "--quiet"}
	if len(req.Files) == 0 {
		args = append(args, "--"+mode)
	}
	if _, err := r.run(ctx, "reset", append(append(args, target, "--"), req.Files...)...); err != nil {
		return err
	}
	return c.writeEmpty(http.StatusOK)
}

func (gitHandlers) restoreFiles(ctx context.Context, c *call) error {
	var req filesRequest
	if err := c.readBody(&req); err != nil {
		return err
	}
	if len(req.Files) == 0 {
		return sandpit.Errorf(sandpit.Invalid, "files is missing")
	}
	r, err := c.openRepository(ctx, req.Path)
	if err != nil {
		return err
	}
	args := []string{"restore", "--quiet"}
	if req.Staged != nil && *req.Staged {
		args = append(args, "--staged")
	}
	if req.Worktree != nil && *req.Worktree {
		args = append(args, "--worktree")
	}
	if req.Source != "" {
		args = append(args, "--source="+req.Source)
	}
	if _, err := r.run(ctx, "restore", append(append(args, "--"), req.Files...)...); err != nil {
		return err
	}
	return c.writeEmpty(http.StatusOK)
}

// commitRequest is the body of a commit.
type commitRequest struct {
	gitPath

	Message    string `json:"message"`
	Author     string `json:"author"`
	Email      string `json:"email"`
	AllowEmpty bool   `json:"allow_empty"`
}

// commitResponse names a new commit.
type commitResponse struct {
	Hash string `json:"hash"`
}

func (gitHandlers) commitChanges(ctx context.Context, c *call) error {
	var req commitRequest
	if err := c.readBody(&req); err != nil {
		return err
	}
	if strings.TrimSpace(req.Message) == "" || req.Author == "" || req.Email == "" {
		return sandpit.Errorf(sandpit.Invalid, "message, author and email are required")
	}
	r, err := c.openRepository(ctx, req.Path)
	if err != nil {
		return err
	}
	r.env = map[string]string{
		"GIT_AUTHOR_NAME": req.Author, "GIT_AUTHOR_EMAIL": req.Email, "GIT_COMMITTER_NAME": req.Author, "GIT_COMMITTER_EMAIL": req.Email,
	}
	args := []string{"commit", "--quiet", "--message=" + req.Message}
	if req.AllowEmpty {
		args = append(args, "--allow-empty")
	}
	if _, err := r.run(ctx, "commit", args...); err != nil {
		return err
	}
	hash, err := r.run(ctx, "commit", "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, commitResponse{Hash: strings.TrimSpace(hash)})
}

// commitInfo describes a commit.
type commitInfo struct {
	Hash      string `json:"hash"`
	Author    string `json:"author"`
	Email     string `json:"email"`
	Message   string `json:"message"`
	Timestamp string `json:"timestamp"`
}

// maxHistory is how many commits the history has.
const maxHistory = "10000"

// getHistory returns the latest commits of the current branch.
func (gitHandlers) getHistory(ctx context.Context, c *call) error {
	r, err := c.queryRepository(ctx)
	if err != nil {
		return err
	}
	commits := []commitInfo{}
	head, err := r.try(ctx, "rev-parse", "--verify", "--quiet", "HEAD")
	if err != nil {
		return err
	}
	if head.ExitCode == 0 || head.Stderr != "" { // otherwise the branch has no commits
		out, err := r.run(ctx, "log", "log", "-z", "--max-count="+maxHistory, "--format=%H%n%an%n%ae%n%aI%n%B")
		if err != nil {
			return err
		}
		commits = parseHistory(out)
	}
	return c.writeJSON(http.StatusOK, commits)
}

// parseHistory parses the commits of git log: five fields each, of which the last has several
// lines.
func parseHistory(out string) []commitInfo {
	const fields = 5
	commits := []commitInfo{}
	for record := range strings.SplitSeq(out, "\x00") {
		if parts := strings.SplitN(record, "\n", fields); len(parts) == fields {
			commits = append(commits, commitInfo{
				Hash: parts[0], Author: parts[1], Email: parts[2], Timestamp: parts[3], Message: strings.TrimRight(parts[4], "\n"),
			})
		}
	}
	return commits
}
