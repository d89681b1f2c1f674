package daytona

import (
	"context"
	"path"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// toolGuest is a sandpit.Guest that has only the toolbox API. What the API cannot do fails with
// Unsupported.
type toolGuest struct {
	b *sandbox

	mu      sync.Mutex
	account account // the toolbox's user, and the directory where commands start
	home    string
	running map[int]*toolProcess
}

var _ sandpit.Guest = (*toolGuest)(nil)

func newToolGuest(b *sandbox) *toolGuest {
	return &toolGuest{b: b, running: make(map[int]*toolProcess)}
}

// refuseTool returns the error of a call that the toolbox API cannot carry out.
func refuseTool(what string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "%s: Daytona's toolbox API cannot do it", what), "set daytona.toolbox = false, for sandpit's guest")
}

// prepare applies the spec of a sandbox that has just started.
//
// Unsupported: the spec has another user than the toolbox.
func (g *toolGuest) prepare(ctx context.Context, spec sandpit.Spec) error {
	found, err := g.b.readAccount(ctx)
	if err != nil {
		return err
	}
	if spec.User != "" && spec.User != found.user {
		return refuseTool("user " + spec.User)
	}
	var answer struct {
		Dir string `json:"dir"`
	}
	if err := g.b.readJSON(ctx, toolCall{method: "GET", path: "/user-home-dir"}, &answer); err != nil {
		return err
	}
	if !path.IsAbs(answer.Dir) {
		return sandpit.Errorf(sandpit.Internal, "the toolbox reports the invalid home directory %.100q", answer.Dir)
	}
	switch spec.WorkDir {
	case "":
	case sandpit.HomeDir:
		found.dir = answer.Dir
	default:
		found.dir = spec.WorkDir
		out, err := g.b.execute(ctx, "mkdir -p -- "+quoteShell(found.dir), launchTime)
		if err == nil && out.ExitCode != 0 {
			err = sandpit.Errorf(sandpit.Invalid, "working directory %q: %s", found.dir, cleanText(out.Result))
		}
		if err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.account, g.home = found, path.Clean(answer.Dir)
	return nil
}

// checkUser refuses a user that is not the toolbox's.
func (g *toolGuest) checkUser(user string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if user != "" && user != g.account.user {
		return refuseTool("act as user " + user)
	}
	return nil
}

// resolve returns the absolute path of a file.
func (g *toolGuest) resolve(user, file string) (string, error) {
	if err := g.checkUser(user); err != nil {
		return "", err
	}
	g.mu.Lock()
	home := g.home
	g.mu.Unlock()
	switch {
	case strings.ContainsRune(file, 0):
		return "", sandpit.Errorf(sandpit.Invalid, "path %.200q contains a zero byte", file)
	case path.IsAbs(file):
		return path.Clean(file), nil
	case file == "~" || strings.HasPrefix(file, "~/"):
		return path.Join(home, file[1:]), nil
	}
	return path.Join(home, file), nil
}
