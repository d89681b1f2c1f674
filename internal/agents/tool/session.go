package tool

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/mcpclient"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

const (
	// maxText is how much of a result a model gets, in bytes.
	maxText = 30_000
	// maxCommandOutput is how much is kept of the output of a command, in bytes.
	maxCommandOutput = 4 << 20
	// outputCost is how many bytes each byte of an output takes: in a window, as text, and
	// in what is made of that.
	outputCost = 3
	// maxAnswer is how much the guest's own programs may answer, in bytes.
	maxAnswer = 64 << 20
	// maxReadFile is the largest file that tools look into, in bytes.
	maxReadFile = 32 << 20
	// outputDir is where whole outputs are kept: see Session.statePath.
	outputDir = ".tool-output"
	// cleanupTimeout is how long removing or keeping a file of ours may take.
	cleanupTimeout = 10 * time.Second
)

// SessionOptions are what a session is like.
type SessionOptions struct {
	// ID names it. Default: "session_" and 8 hexadecimal digits.
	ID string
	// Dir is where it works, an absolute path; it is made if missing. Default: what
	// workspace.Locate finds.
	Dir string
	// User runs its commands and owns its files. Default: the sandbox's.
	User string
	// Confine keeps the file tools within Dir: for sessions that share a sandbox with
	// others. Each needs a User of its own for that, or its commands are not kept apart.
	// Default: they see the whole sandbox, which is theirs alone.
	Confine bool
	// CreatedAt is told by workspace_info. Default: now.
	CreatedAt time.Time
	// Servers are the MCP servers whose tools can be called. Default: none.
	Servers mcpclient.Config
	// Preview returns a URL at which people see a port of the sandbox. Default: there is none.
	Preview func(ctx context.Context, port int) (string, error)
	// Memory opens an account for what the session keeps. Default: there is no limit.
	Memory func() *memory.Account
}

// Session is a place in a sandbox in which tools work: a directory, an environment,
// shells and programs in the background. All methods may be called concurrently.
type Session struct {
	o           SessionOptions
	location    workspace.Place
	guest       sandpit.Guest
	files       *workspace.Workspace
	gitFiles    *workspace.Workspace // for git, which takes longer
	appletFiles *workspace.Workspace // for the guest's own programs, which have much to say
	shells      *shell.Sessions
	// servers are those of MCP.
	servers  *mcpclient.Servers
	browsing *browserHolder
	kernels  *kernels
	memory   *memory.Account // of edits

	mu      sync.Mutex
	env     map[string]string
	secrets map[string]bool
	outputs int
	opening sync.Mutex // one at a time makes a shell
	editing sync.Mutex // one at a time reads a file and writes it again
	edits   []fileEdit // those that can be undone, the oldest first; guarded by editing
}

var sessionPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// locateTimeout bounds how long the guest may take to say where a session works.
const locateTimeout = 30 * time.Second

// locateWorkspace returns where a session works.
func (o SessionOptions) locateWorkspace(ctx context.Context, g sandpit.Guest) (workspace.Place, error) {
	ctx, cancel := context.WithTimeout(ctx, locateTimeout)
	defer cancel()
	place, err := workspace.Locate(ctx, g, o.User, o.Dir)
	if err != nil {
		return place, fmt.Errorf("find the working directory: %w", err)
	}
	return place, nil
}

// NewSession begins a session in the sandbox of a guest, whose working directory exists
// from then on. The caller must Close it.
//
// Invalid: the options can never work. Unsupported: this sandbox cannot confine. Errors of
// workspace.Locate.
func NewSession(ctx context.Context, g sandpit.Guest, o SessionOptions) (*Session, error) {
	if o.ID == "" {
		o.ID = newSessionID()
	}
	if !sessionPattern.MatchString(o.ID) {
		return nil, sandpit.Errorf(sandpit.Invalid, "session %.100q: want letters, digits, and inside also - _ and dots, at most 64", o.ID)
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
		browsing: newBrowserHolder(), env: map[string]string{}, secrets: map[string]bool{},
	}
	s.servers = mcpclient.New(mcpclient.Options{Guest: g, User: o.User, Dir: o.Dir, Env: s.environment, Config: o.Servers, Version: "1"})
	for _, value := range o.Servers.Secrets() {
		s.hideSecret(value)
	}
	s.kernels = newKernels(s)
	return s, nil
}

func newSessionID() string {
	raw := make([]byte, 4)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return "session_" + hex.EncodeToString(raw)
}

// ID names the session.
func (s *Session) ID() string { return s.o.ID }

// Dir is where it works.
func (s *Session) Dir() string { return s.o.Dir }

// Close ends its shells, kernels, programs and browser. Files stay, and so does the sandbox.
// It is idempotent.
func (s *Session) Close() error {
	defer s.memory.Close()
	s.servers.Close(context.Background()) // which has limits of its own
	return errors.Join(s.shells.Close(), s.kernels.close(), s.closeBrowser())
}

// absPath is an absolute path inside.
func (s *Session) absPath(p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join(s.o.Dir, p)
}

// statePath is where files of the session's own are: outputs that were cut, the profile of
// its browser. The user of an image need not be able to write in the working directory.
func (s *Session) statePath(name string) string { return path.Join(s.location.State, name) }

// environment is what commands of the session get.
func (s *Session) environment() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.env)
}

// runProgram runs a program, without a shell. The outputs of a command that fails are no error.
func (s *Session) runProgram(ctx context.Context, cmd sandpit.Command) (workspace.Result, error) {
	env := s.environment()
	maps.Copy(env, cmd.Env)
	cmd.Env = env
	return s.files.Run(ctx, cmd)
}

// callApplet has the guest's own program do something as the user of the session.
func callApplet[Answer any](ctx context.Context, s *Session, name string, request any) (Answer, error) {
	return callAppletIn[Answer](ctx, s.appletFiles, name, request, s.environment())
}

// callAppletIn has the guest's own program do something.
func callAppletIn[Answer any](ctx context.Context, w *workspace.Workspace, name string, request any, env map[string]string) (Answer, error) {
	var answer struct {
		Error *applet.Failure `json:"error"`
		Value Answer          `json:"value"`
	}
	input, err := json.Marshal(request)
	if err != nil {
		return answer.Value, err
	}
	result, err := w.Run(ctx, sandpit.Command{Args: []string{sandpit.GuestProgram, name}, Stdin: bytes.NewReader(input), Env: env})
	if err != nil {
		return answer.Value, err
	}
	if result.Truncated {
		return answer.Value, sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "the response exceeds the memory limit"), "request less at a time")
	}
	if err := json.Unmarshal([]byte(result.Stdout), &answer); err != nil {
		return answer.Value, sandpit.Errorf(sandpit.Internal, "the sandbox's own program has ended with status %d and no answer: %.400s", result.ExitCode, result.Stderr)
	}
	if answer.Error != nil {
		return answer.Value, sandpit.Errorf(allowedCode(answer.Error.Code), "%s", answer.Error.Message)
	}
	return answer.Value, nil
}

// allowedCode is the code of a failure as a sandbox may tell it: what is said in one decides about no credential and
// no sandbox.
func allowedCode(code sandpit.Code) sandpit.Code {
	switch code {
	case sandpit.Invalid, sandpit.PermissionDenied, sandpit.NotFound, sandpit.AlreadyExists, sandpit.Conflict, sandpit.Exhausted,
		sandpit.Unsupported, sandpit.Unavailable, sandpit.Timeout:
		return code
	default:
		return sandpit.Internal
	}
}

// Ended reports whether the sandbox is no more. An error of the code Gone says less: it may be about a program, or
// a connection that the sandbox has cut.
func (s *Session) Ended(ctx context.Context) bool { return hasEnded(ctx, s.guest) }

func hasEnded(ctx context.Context, g sandpit.Guest) bool {
	_, err := g.ListProcesses(ctx)
	return sandpit.CodeOf(err) == sandpit.Gone
}

// boundResult cuts what is too long for a model, takes secrets out, and keeps the whole of it
// in a file of the sandbox.
func (s *Session) boundResult(ctx context.Context, tool string, r Result) Result {
	r.Text, r.Data = s.maskSecrets(strings.ToValidUTF8(r.Text, "?")), s.maskData(r.Data)
	if p := r.Problem; p != nil {
		r.Problem = &Problem{Code: p.Code, Message: s.truncateText(p.Message), Hint: s.truncateText(p.Hint)}
	}
	if len(r.Text) <= maxText {
		return r
	}
	whole := r.Text
	window := workspace.NewWindow(maxText)
	_, _ = window.Write([]byte(whole)) // never fails
	r.Text = strings.ToValidUTF8(window.String(), "")
	saved, err := s.saveOutput(ctx, tool, whole)
	if err != nil {
		r.Text += fmt.Sprintf("\n(%d bytes in all; they could not be kept: %v)", len(whole), err)
		return r
	}
	r.SavedTo = saved
	r.Text += fmt.Sprintf("\n(%d bytes in all, in the file %s)", len(whole), saved)
	return r
}

// saveOutput writes an output to a file that version control passes over.
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

// filesAs is the session's view of files, or that of the sandbox's root.
//
// PermissionDenied: root of a sandbox that others share.
func (s *Session) filesAs(root bool) (*workspace.Workspace, error) {
	if !root {
		return s.files, nil
	}
	if s.o.Confine {
		return nil, sandpit.Errorf(sandpit.PermissionDenied, "this session shares its sandbox with others and has no root")
	}
	return workspace.New(s.guest, workspace.Options{User: "root", Dir: s.o.Dir, MaxOutput: maxCommandOutput, MaxFile: maxReadFile})
}

// ReadFile returns a file of up to limit bytes, as the tools would see it. Errors as of
// workspace.Workspace.ReadFile.
func (s *Session) ReadFile(ctx context.Context, name string, limit int64) ([]byte, error) {
	f, err := s.files.Stat(ctx, name)
	if err != nil {
		return nil, err
	}
	if f.Size > limit {
		return nil, sandpit.Errorf(sandpit.Exhausted, "%s has %d bytes; at most %d are handed out", name, f.Size, limit)
	}
	return s.files.ReadFile(ctx, name)
}
