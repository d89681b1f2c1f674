package tool

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/mcpclient"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

const (
	// maxText bounds the text of a result, in bytes.
	maxText = 30_000
	// maxCommandOutput bounds the stored output of a command, in bytes.
	maxCommandOutput = 4 << 20
	// outputCost is the memory for each byte of output: in a window, as text, and in results.
	outputCost = 3
	// maxAnswer bounds the response of an applet, in bytes.
	maxAnswer = 64 << 20
	// maxReadFile bounds a file that tools read, in bytes.
	maxReadFile = 32 << 20
	// outputDir is the directory of complete outputs: see Session.statePath.
	outputDir = ".tool-output"
	// cleanupTimeout bounds removing or writing an internal file.
	cleanupTimeout = 10 * time.Second
)

// SessionOptions configure a session.
type SessionOptions struct {
	// ID identifies the session. Default: "session_" and 8 hexadecimal digits.
	ID string
	// Dir is the absolute path of the working directory, created if missing. Default: the result
	// of workspace.Locate.
	Dir string
	// User runs its commands and owns its files. Default: the sandbox's user.
	User string
	// Confine restricts file tools to Dir, for sessions that share a sandbox. Each session then
	// needs its own User, otherwise its commands are not isolated. Default: file tools can
	// access the whole sandbox.
	Confine bool
	// CreatedAt is the time that workspace_info reports. Default: now.
	CreatedAt time.Time
	// Servers are the MCP servers with callable tools. Default: none.
	Servers mcpclient.Config
	// Preview returns a link to a port of the sandbox. Default: there are no previews.
	Preview func(ctx context.Context, port int) (Page, error)
	// Memory opens an account for the memory of the session. Default: no limit.
	Memory func() *memory.Account
}

// Session is the context of tools in a sandbox: a directory, an environment, shells and background
// programs. All methods may be called concurrently.
type Session struct {
	o           SessionOptions
	location    workspace.Place
	guest       sandpit.Guest
	files       *workspace.Workspace
	gitFiles    *workspace.Workspace // with a longer timeout for git
	appletFiles *workspace.Workspace // with a larger output limit for applets
	shells      *shell.Sessions
	// servers are the MCP servers.
	servers  *mcpclient.Servers
	browsing *browserHolder
	kernels  *kernels
	memory   *memory.Account // of edits
	secrets  *secretSet

	mu      sync.Mutex
	env     map[string]string
	outputs int
	opening sync.Mutex // held while a shell is created
	editing sync.Mutex // held while a file is read and rewritten
	edits   []fileEdit // edits that can be undone, the oldest first; guarded by editing
}

var sessionPattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// locateTimeout bounds finding the working directory of a session.
const locateTimeout = 30 * time.Second

// locateWorkspace returns the location of a session's workspace.
func (o SessionOptions) locateWorkspace(ctx context.Context, g sandpit.Guest) (workspace.Place, error) {
	ctx, cancel := context.WithTimeout(ctx, locateTimeout)
	defer cancel()
	place, err := workspace.Locate(ctx, g, o.User, o.Dir)
	if err != nil {
		return place, fmt.Errorf("find the working directory: %w", err)
	}
	return place, nil
}

// NewSession starts a session in the sandbox of a guest and creates its working directory. The caller
// must Close it.
//
// Invalid: invalid options. Unsupported: this sandbox cannot confine. Otherwise errors of
// workspace.Locate.
func NewSession(ctx context.Context, g sandpit.Guest, o SessionOptions) (*Session, error) {
	if o.ID == "" {
		o.ID = newSessionID()
	}
	if !sessionPattern().MatchString(o.ID) {
		return nil, sandpit.Errorf(sandpit.Invalid, "invalid session %.100q: want 1 to 64 letters and digits, and - _ . except at the beginning", o.ID)
	}
	if o.CreatedAt.IsZero() {
		o.CreatedAt = time.Now()
	}
	place, err := o.locateWorkspace(ctx, g)
	if err != nil {
		return nil, err
	}
	o.Dir = place.Dir
	places := workspace.Options{User: o.User, Dir: o.Dir, MaxOutput: maxCommandOutput, MaxFile: maxReadFile}
	if o.Confine {
		places.Within = []string{o.Dir}
	}
	files, err := workspace.New(g, places)
	if err != nil {
		return nil, err
	}
	places.Timeout = gitTimeout
	gits, err := workspace.New(g, places)
	if err != nil {
		return nil, err
	}
	own, err := workspace.New(g, workspace.Options{User: o.User, Dir: "/", MaxOutput: maxAnswer})
	if err != nil {
		return nil, err
	}
	if o.Memory == nil {
		o.Memory = func() *memory.Account { return nil }
	}
	s := &Session{
		o: o, location: place, memory: o.Memory(), guest: g, files: files, gitFiles: gits, appletFiles: own, shells: shell.NewSessions(g, shell.SetOptions{Memory: o.Memory}),
		browsing: newBrowserHolder(), env: map[string]string{}, secrets: &secretSet{values: map[string]bool{}},
	}
	s.servers = mcpclient.New(mcpclient.Options{Guest: g, User: o.User, Dir: o.Dir, Env: s.environment, Config: o.Servers, Version: "1"})
	for _, value := range o.Servers.Secrets() {
		s.secretSet().hide(value)
	}
	s.kernels = newKernels(s)
	return s, nil
}

func newSessionID() string {
	raw := make([]byte, 4)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return "session_" + hex.EncodeToString(raw)
}

// ID returns the session's ID, or "" without a session.
func (s *Session) ID() string {
	if s == nil {
		return ""
	}
	return s.o.ID
}

// Dir returns the working directory.
func (s *Session) Dir() string { return s.o.Dir }

// Close ends the session's shells, interpreters, programs and browser. It keeps the files and the
// sandbox. It is idempotent.
func (s *Session) Close() error {
	defer s.memory.Close()
	s.servers.Close(context.Background()) // it has its own timeouts
	return errors.Join(s.shells.Close(), s.kernels.close(), s.closeBrowser())
}

// absPath returns the absolute path of p in the sandbox.
func (s *Session) absPath(p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(s.o.Dir, p)
}

// statePath returns the path of an internal file of the session: complete outputs, the browser's
// profile. They are not in the working directory, where the user may lack write permission.
func (s *Session) statePath(name string) string { return path.Join(s.location.State, name) }

// environment returns the environment of the session's commands.
func (s *Session) environment() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.env)
}

// runProgram runs a program without a shell. A failed exit status is not an error.
func (s *Session) runProgram(ctx context.Context, cmd sandpit.Command) (workspace.Result, error) {
	env := s.environment()
	maps.Copy(env, cmd.Env)
	cmd.Env = env
	return s.files.Run(ctx, cmd)
}

// callApplet runs an applet as the session's user.
func callApplet[Answer any](ctx context.Context, s *Session, name string, request any) (Answer, error) {
	return workspace.CallApplet[Answer](ctx, s.appletFiles, name, request, s.environment())
}

// Ended reports whether the sandbox has ended. An error with the code Gone is not sufficient: it may
// be about a program or a connection that the sandbox has closed.
func (s *Session) Ended(ctx context.Context) bool { return hasEnded(ctx, s.guest) }

func hasEnded(ctx context.Context, g sandpit.Guest) bool {
	_, err := g.ListProcesses(ctx)
	return sandpit.CodeOf(err) == sandpit.Gone
}

// boundResult masks secrets, truncates a text that is too long for a model, and writes the complete
// text to a file of the sandbox.
func (s *Session) boundResult(ctx context.Context, tool string, r Result) Result {
	r.Text, r.Data = s.secretSet().maskText(strings.ToValidUTF8(r.Text, "?")), s.secretSet().maskData(r.Data)
	if p := r.Problem; p != nil {
		r.Problem = &Problem{Code: p.Code, Message: s.secretSet().truncateText(p.Message), Hint: s.secretSet().truncateText(p.Hint)}
	}
	if len(r.Text) <= maxText {
		return r
	}
	whole := r.Text
	window := workspace.NewWindow(maxText)
	_, _ = window.Write([]byte(whole)) // never fails
	r.Text = strings.ToValidUTF8(window.String(), "")
	if s == nil {
		r.Text += fmt.Sprintf("\n(%d bytes in total)", len(whole))
		return r
	}
	saved, err := s.saveOutput(ctx, tool, whole)
	if err != nil {
		r.Text += fmt.Sprintf("\n(%d bytes in total; the complete output could not be saved: %v)", len(whole), err)
		return r
	}
	r.SavedTo = saved
	r.Text += fmt.Sprintf("\n(%d bytes in total; the complete output is in the file %s)", len(whole), saved)
	return r
}

// saveOutput writes a complete output to a file that version control ignores.
func (s *Session) saveOutput(ctx context.Context, tool, text string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	s.mu.Lock()
	s.outputs++
	number := s.outputs
	s.mu.Unlock()
	dir := s.statePath(outputDir)
	file := path.Join(dir, fmt.Sprintf("%s-%s-%d.txt", s.o.ID, tool, number))
	ignore := s.files.WriteFile(ctx, path.Join(dir, ".gitignore"), strings.NewReader("*\n"))
	return file, errors.Join(ignore, s.files.WriteFile(ctx, file, strings.NewReader(text)))
}

// filesAs returns the workspace of the session's user, or of root.
//
// PermissionDenied: root in a shared sandbox.
func (s *Session) filesAs(root bool) (*workspace.Workspace, error) {
	if !root {
		return s.files, nil
	}
	if s.o.Confine {
		return nil, sandpit.Errorf(sandpit.PermissionDenied, "root access is not available in a shared sandbox")
	}
	return workspace.New(s.guest, workspace.Options{User: "root", Dir: s.o.Dir, MaxOutput: maxCommandOutput, MaxFile: maxReadFile})
}

// ReadFile returns a file of up to limit bytes with the rights of the tools.
//
// Exhausted: the file is larger. Otherwise errors of workspace.Workspace.ReadFile.
func (s *Session) ReadFile(ctx context.Context, name string, limit int64) ([]byte, error) {
	f, err := s.files.Stat(ctx, name)
	if err != nil {
		return nil, err
	}
	if f.Size > limit {
		return nil, sandpit.Errorf(sandpit.Exhausted, "%s has %d bytes, more than the limit of %d", name, f.Size, limit)
	}
	return s.files.ReadFile(ctx, name)
}
