package toolbox_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
)

type object map[string]any

// gitState is what clients decode of a repository's status.
type gitState struct {
	CurrentBranch             string
	Detached, BranchPublished bool
	Upstream                  string
	Ahead, Behind             int
	FileStatus                []struct{ Name, Staging, Worktree, Extra string }
}

func (i *inside) status(path string) (state gitState) {
	i.Helper()
	i.get("/git/status", "path", path).want(http.StatusOK, &state)
	return state
}

// TestGit goes through the calls on repositories: one that others push to, and clones of it.
func TestGit(t *testing.T) {
	t.Parallel()
	i := newInside(t, toolbox.Options{}, sandpit.Spec{})
	if !strings.Contains(i.run("command -v git || true"), "git") {
		t.Skip("no git")
	}
	dir := strings.TrimSpace(i.run("pwd"))
	i.get("/git/status", "path", "one").wantCode(http.StatusNotFound, "GIT_REPO_NOT_FOUND")
	i.call(http.MethodPost, "/git/init", object{"path": "shared", "bare": true, "initial_branch": "main"}).want(http.StatusCreated, nil)
	i.call(http.MethodPost, "/git/clone", object{"path": "one", "url": dir + "/shared"}).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/git/clone", object{"path": "one", "url": dir + "/shared"}).wantCode(http.StatusConflict, "CONFLICT")
	i.call(http.MethodPost, "/git/clone", object{"path": "two", "url": dir + "/nothing"}).wantCode(http.StatusNotFound, "GIT_REPO_NOT_FOUND")
	i.call(http.MethodPost, "/git/clone", object{"path": "two", "url": "--upload-pack=x"}).wantCode(http.StatusBadRequest, "BAD_REQUEST")
	if got := i.get("/git/history", "path", "one").want(http.StatusOK, nil); got.body != "[]" {
		t.Errorf("%s", got.body)
	}

	i.run("mkdir one/d; echo 1 > one/a; echo 1 > 'one/d/b c'")
	if state := i.status("one"); state.CurrentBranch != "main" || state.BranchPublished || len(state.FileStatus) != 2 || state.FileStatus[1].Name != "d/b c" ||
		state.FileStatus[1].Staging != "Untracked" || state.FileStatus[1].Worktree != "Untracked" {
		t.Errorf("%+v", state)
	}
	commit := func(repo, message string) (hash string) {
		t.Helper()
		i.call(http.MethodPost, "/git/add", object{"path": repo, "files": []string{"."}}).want(http.StatusOK, nil)
		var made struct{ Hash string }
		i.call(http.MethodPost, "/git/commit", object{"path": repo, "message": message, "author": "Ann", "email": "ann@example.org"}).want(http.StatusOK, &made)
		return made.Hash
	}
	i.call(http.MethodPost, "/git/add", object{"path": "one", "files": []string{"nothing"}}).wantCode(http.StatusNotFound, "FILE_NOT_FOUND")
	first := commit("one", "First\n\nbody")
	i.call(http.MethodPost, "/git/commit", object{"path": "one", "message": "x", "author": "Ann", "email": "a@b"}).wantCode(http.StatusBadRequest, "BAD_REQUEST")
	i.call(http.MethodPost, "/git/commit", object{"path": "one", "message": "empty", "author": "Ann", "email": "a@b", "allow_empty": true}).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/git/reset", object{"path": "one", "mode": "hard", "target": first}).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/git/push", object{"path": "one", "set_upstream": true}).want(http.StatusOK, nil)
	var history []struct{ Hash, Author, Email, Message, Timestamp string }
	i.get("/git/history", "path", "one").want(http.StatusOK, &history)
	if len(history) != 1 || history[0].Hash != first || history[0].Author != "Ann" || history[0].Email != "ann@example.org" ||
		history[0].Message != "First\n\nbody" || !strings.Contains(history[0].Timestamp, "T") {
		t.Errorf("%+v", history)
	}

	i.call(http.MethodPost, "/git/clone", object{"path": "two", "url": dir + "/shared", "branch": "main"}).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/git/clone", object{"path": "three", "url": dir + "/shared", "branch": "none"}).wantCode(http.StatusNotFound, "GIT_BRANCH_NOT_FOUND")
	i.run("echo 2 > two/a")
	commit("two", "Second")
	if state := i.status("two"); !state.BranchPublished || state.Ahead != 1 || state.Behind != 0 || state.Upstream != "origin/main" || len(state.FileStatus) != 0 {
		t.Errorf("%+v", state)
	}
	i.call(http.MethodPost, "/git/push", object{"path": "two"}).want(http.StatusOK, nil)
	i.run("echo 3 > one/new")
	commit("one", "Third")
	i.call(http.MethodPost, "/git/push", object{"path": "one"}).wantCode(http.StatusConflict, "GIT_PUSH_REJECTED")
	i.call(http.MethodPost, "/git/pull", object{"path": "one"}).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/git/push", object{"path": "one", "remote": "origin", "branch": "main"}).want(http.StatusOK, nil)
	i.run("echo other > two/new")
	commit("two", "Fourth")
	i.call(http.MethodPost, "/git/pull", object{"path": "two", "remote": "origin", "branch": "main"}).wantCode(http.StatusConflict, "GIT_MERGE_CONFLICT")
	if state := i.status("two"); len(state.FileStatus) == 0 || state.FileStatus[0].Name != "new" || state.FileStatus[0].Staging != "Added" {
		t.Errorf("%+v", state)
	}
	i.call(http.MethodPost, "/git/pull", object{"path": "one", "remote": "none"}).want(http.StatusBadRequest, nil)
	i.run("printf '#!/bin/sh\nexit 1\n' > shared/hooks/pre-receive; chmod +x shared/hooks/pre-receive; echo 4 > one/a")
	commit("one", "Fifth")
	i.call(http.MethodPost, "/git/push", object{"path": "one"}).wantCode(http.StatusUnprocessableEntity, "GIT_REMOTE_REJECTED")
	i.call(http.MethodPost, "/git/clone", object{"path": "four", "url": "http://127.0.0.1:9/x", "username": "u", "password": "p"}).
		wantCode(http.StatusBadGateway, "GIT_TRANSPORT_FAILED")
	i.call(http.MethodPost, "/git/clone", object{"path": "commit", "url": dir + "/shared", "commit_id": first[:12]}).want(http.StatusOK, nil)
	if state := i.status("commit"); !state.Detached || state.CurrentBranch != "HEAD" {
		t.Errorf("%+v", state)
	}
}

// TestBranches goes through the calls on branches and the working tree.
func TestBranches(t *testing.T) {
	t.Parallel()
	i := newInside(t, toolbox.Options{}, sandpit.Spec{})
	if !strings.Contains(i.run("command -v git || true"), "git") {
		t.Skip("no git")
	}
	i.call(http.MethodPost, "/git/init", object{"path": "r", "initial_branch": "main"}).want(http.StatusCreated, nil)
	i.run("cd r; echo 1 > a; git add a; git -c user.name=A -c user.email=a@b commit -qm One; git checkout -qb other; echo 2 > a; git -c user.name=A -c user.email=a@b commit -qam Two; git checkout -q main")
	i.call(http.MethodPost, "/git/branches", object{"path": "r", "name": "new"}).want(http.StatusCreated, nil)
	i.call(http.MethodPost, "/git/branches", object{"path": "r", "name": "new"}).wantCode(http.StatusConflict, "GIT_BRANCH_EXISTS")
	i.call(http.MethodPost, "/git/branches", object{"path": "r", "name": "--force"}).wantCode(http.StatusBadRequest, "BAD_REQUEST")
	var list struct {
		Branches []string
		Current  string
	}
	i.get("/git/branches", "path", "r").want(http.StatusOK, &list)
	if strings.Join(list.Branches, " ") != "main new other" || list.Current != "main" {
		t.Errorf("%+v", list)
	}
	i.call(http.MethodDelete, "/git/branches", object{"path": "r", "name": "new"}).want(http.StatusNoContent, nil)
	i.call(http.MethodDelete, "/git/branches", object{"path": "r", "name": "new"}).wantCode(http.StatusNotFound, "GIT_BRANCH_NOT_FOUND")
	i.call(http.MethodDelete, "/git/branches", object{"path": "r", "name": "main"}).wantCode(http.StatusConflict, "CONFLICT")

	i.run("echo 3 > r/a")
	i.call(http.MethodPost, "/git/checkout", object{"path": "r", "branch": "other"}).wantCode(http.StatusConflict, "GIT_DIRTY_WORKTREE")
	i.call(http.MethodPost, "/git/restore", object{"path": "r", "files": []string{"a"}}).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/git/checkout", object{"path": "r", "branch": "other"}).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/git/checkout", object{"path": "r", "branch": "none"}).wantCode(http.StatusNotFound, "GIT_BRANCH_NOT_FOUND")
	i.run("cd r; git mv a b; echo x > c; git add c; echo y > c")
	state := i.status("r")
	if len(state.FileStatus) != 2 || state.FileStatus[0].Name != "b" || state.FileStatus[0].Staging != "Renamed" || state.FileStatus[0].Extra != "a" ||
		state.FileStatus[1].Staging != "Added" || state.FileStatus[1].Worktree != "Modified" {
		t.Errorf("%+v", state)
	}
	i.call(http.MethodPost, "/git/restore", object{"path": "r", "files": []string{"c"}, "staged": true}).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/git/reset", object{"path": "r", "files": []string{"b"}}).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/git/reset", object{"path": "r", "mode": "none"}).wantCode(http.StatusBadRequest, "BAD_REQUEST")

	i.call(http.MethodPost, "/git/remotes", object{"path": "r", "name": "up", "url": "https://example.org/a"}).want(http.StatusCreated, nil)
	i.call(http.MethodPost, "/git/remotes", object{"path": "r", "name": "up", "url": "https://example.org/b"}).wantCode(http.StatusConflict, "CONFLICT")
	i.call(http.MethodPost, "/git/remotes", object{"path": "r", "name": "up", "url": "https://example.org/b", "overwrite": true}).want(http.StatusCreated, nil)
	var remotes struct{ Remotes []struct{ Name, URL string } }
	i.get("/git/remotes", "path", "r").want(http.StatusOK, &remotes)
	if len(remotes.Remotes) != 1 || remotes.Remotes[0].Name != "up" || remotes.Remotes[0].URL != "https://example.org/b" {
		t.Errorf("%+v", remotes)
	}

	if got := i.get("/git/config", "key", "user.name").want(http.StatusOK, nil); got.body != "{}" {
		t.Errorf("%s", got.body)
	}
	i.call(http.MethodPost, "/git/config/user", object{"name": "Ann B", "email": "ann@example.org"}).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/git/config", object{"key": "core.abbrev", "value": "9", "scope": "local", "path": "r"}).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/git/config", object{"key": "nodot", "value": "9"}).wantCode(http.StatusBadRequest, "BAD_REQUEST")
	i.get("/git/config", "key", "core.abbrev", "scope", "local").wantCode(http.StatusBadRequest, "INVALID_FILE_PATH")
	var value struct{ Value string }
	i.get("/git/config", "key", "user.name").want(http.StatusOK, &value)
	if value.Value != "Ann B" {
		t.Errorf("%q", value.Value)
	}
	i.call(http.MethodPost, "/git/credentials", object{"username": "ann", "password": "pass:word", "host": "example.org"}).want(http.StatusOK, nil)
	if got := i.run(`printf 'protocol=https\nhost=example.org\n' | git credential fill`); !strings.Contains(got, "password=pass:word\n") {
		t.Errorf("%q", got)
	}
	i.call(http.MethodPost, "/git/credentials", object{"username": "a\nb", "password": "x"}).wantCode(http.StatusBadRequest, "BAD_REQUEST")
}
