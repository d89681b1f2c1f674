package sshd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

const (
	// fileTime is how long anything may take that carries no content.
	fileTime = 30 * time.Second
	// maxFiles is how many files a session may have open, and fileCost how much memory each
	// may take, in bytes.
	maxFiles = 16
	fileCost = maxPending
)

// serveSFTP serves files until the client is done.
func (s *session) serveSFTP(ctx context.Context) {
	begin := time.Now()
	f := &files{
		ctx: ctx, guest: s.sandbox.Guest(), memory: s.memory, uploads: make(map[string]*upload),
		budget: s.server.o.Memory, actor: s.actor,
	}
	server := sftp.NewRequestServer(newOrderly(s.channel), sftp.Handlers{FileGet: f, FilePut: f, FileCmd: f, FileList: f}, sftp.WithStartDirectory(f.startDir()))
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // it ends Serve
	defer stop()
	err := server.Serve()
	if errors.Is(err, io.EOF) {
		err = nil // the client is done
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
		s.writeMessage(err.Error())
	}
	s.reportEvent("ssh sftp", nil, err, time.Since(begin))
	status := sandpit.ExitStatus{}
	if err != nil {
		status.Code = statusFailed
	}
	s.sendExit(status)
}

// files are those of a sandbox, as SFTP speaks of them. All methods may be called
// concurrently.
type files struct {
	ctx   context.Context //nolint:containedctx // of the session; requests are given none that ends with it
	guest sandpit.Guest
	// memory is the account of the connection, budget where calls have theirs.
	memory *memory.Account
	budget *memory.Budget
	actor  string

	mu      sync.Mutex
	open    int
	uploads map[string]*upload // by path
}

var (
	_ sftp.FileReader           = (*files)(nil)
	_ sftp.FileWriter           = (*files)(nil)
	_ sftp.PosixRenameFileCmder = (*files)(nil)
	_ sftp.LstatFileLister      = (*files)(nil)
	_ sftp.ReadlinkFileLister   = (*files)(nil)
)

// failure is an error in SFTP's form.
type failure struct {
	code error // of the protocol
	text string
}

func (f failure) Error() string { return f.text }
func (f failure) Unwrap() error { return f.code }

// toClientError returns err in the form for clients.
func toClientError(err error) error {
	if err == nil {
		return nil
	}
	code := error(sftp.ErrSSHFxFailure)
	switch sandpit.CodeOf(err) {
	case sandpit.NotFound:
		code = sftp.ErrSSHFxNoSuchFile
	case sandpit.PermissionDenied:
		code = sftp.ErrSSHFxPermissionDenied
	case sandpit.Unsupported:
		code = sftp.ErrSSHFxOpUnsupported
	default: // the protocol knows no more
	}
	text := err.Error()
	if hint := sandpit.HintOf(err); hint != "" && sandpit.CodeOf(err) == sandpit.Unavailable {
		text += ": " + hint // clients show nothing else
	}
	return failure{code, toVisible(text)}
}

func refuseRequest(code sandpit.Code, format string, args ...any) error {
	return toClientError(sandpit.Errorf(code, format, args...))
}

// shortContext returns a context for what carries no content.
func (f *files) shortContext() (context.Context, context.CancelFunc) {
	account := f.budget.OpenRequest(f.actor)
	ctx, cancel := context.WithTimeout(memory.WithAccount(f.ctx, account), fileTime)
	return ctx, func() {
		cancel()
		account.Close()
	}
}

// startDir is where relative paths begin: where commands do.
func (f *files) startDir() string {
	var out limited
	if err := f.runProgram(&out, "pwd"); err == nil {
		if dir := strings.TrimSuffix(out.String(), "\n"); path.IsAbs(dir) {
			return dir
		}
	}
	ctx, cancel := f.shortContext()
	defer cancel()
	if home, err := f.guest.Stat(ctx, "", "~"); err == nil {
		return home.Path
	}
	return "/"
}

// limited keeps the beginning of what is written to it.
type limited struct{ bytes.Buffer }

// Write implements io.Writer.
func (l *limited) Write(b []byte) (int, error) {
	const most = 4 << 10
	_, _ = l.Buffer.Write(b[:min(len(b), max(0, most-l.Len()))]) // never fails
	return len(b), nil
}

// runProgram runs a program inside, for operations that the guest does not have.
//
// Unsupported: the program does not exist.
func (f *files) runProgram(out io.Writer, args ...string) error {
	ctx, cancel := f.shortContext()
	defer cancel()
	var stderr limited
	process, err := f.guest.Start(ctx, sandpit.Command{Args: args, Timeout: fileTime, Stdout: out, Stderr: &stderr})
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return sandpit.Errorf(sandpit.Unsupported, "there is no %s in this sandbox", args[0])
	}
	if err != nil {
		return err
	}
	status, err := process.Wait(ctx)
	if err != nil {
		return err
	}
	if status.Code != 0 {
		return sandpit.Errorf(sandpit.Invalid, "%s", strings.TrimSpace(stderr.String()))
	}
	return nil
}

// reserveFile counts one more open file, if there may be one.
func (f *files) reserveFile() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open >= maxFiles {
		return refuseRequest(sandpit.Exhausted, "there are %d files open already", f.open)
	}
	if err := f.memory.Reserve(fileCost); err != nil {
		return toClientError(err)
	}
	f.open++
	return nil
}

func (f *files) releaseFile() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.open--
	f.memory.Return(fileCost)
}

// statFile describes a file, or what a link leads to.
func (f *files) statFile(name string, follow bool) (sandpit.File, error) {
	ctx, cancel := f.shortContext()
	defer cancel()
	file, err := f.guest.Stat(ctx, "", name)
	if err == nil && follow && file.LinkTarget != "" {
		link := file
		if file, err = f.guest.Stat(ctx, "", link.LinkTarget); err == nil {
			file.Name, file.Path = link.Name, link.Path
		}
	}
	return file, err
}

// Filecmd implements sftp.FileCmder.
func (f *files) Filecmd(r *sftp.Request) error {
	ctx, cancel := f.shortContext()
	defer cancel()
	switch r.Method {
	case "Setstat":
		return f.setStat(r)
	case "Rename":
		if _, err := f.guest.Stat(ctx, "", r.Target); err == nil {
			return refuseRequest(sandpit.AlreadyExists, "%s already exists", r.Target)
		}
		return toClientError(f.guest.Move(ctx, "", r.Filepath, r.Target))
	case "Mkdir":
		if _, err := f.guest.Stat(ctx, "", path.Dir(r.Filepath)); err != nil {
			return toClientError(err) // Files would make it
		}
		return toClientError(f.guest.MakeDir(ctx, "", r.Filepath))
	case "Rmdir":
		return f.removeDir(ctx, r.Filepath)
	case "Remove":
		file, err := f.guest.Stat(ctx, "", r.Filepath)
		if err == nil && file.Mode.IsDir() {
			err = sandpit.Errorf(sandpit.Invalid, "%s is a directory", r.Filepath)
		}
		if err == nil {
			err = f.guest.Remove(ctx, "", r.Filepath)
		}
		return toClientError(err)
	case "Symlink":
		return toClientError(f.runProgram(io.Discard, "ln", "-s", "-T", "--", r.Filepath, r.Target))
	case "Link":
		return toClientError(f.runProgram(io.Discard, "ln", "-T", "--", r.Filepath, r.Target))
	}
	return sftp.ErrSSHFxOpUnsupported
}

// removeDir removes an empty directory. What is put into it at the same moment may go
// with it, which Files cannot prevent.
func (f *files) removeDir(ctx context.Context, name string) error {
	file, err := f.guest.Stat(ctx, "", name)
	if err == nil && !file.Mode.IsDir() {
		err = sandpit.Errorf(sandpit.Invalid, "%s is not a directory", name)
	}
	if err != nil {
		return toClientError(err)
	}
	list, err := f.guest.ListDir(ctx, "", name, 1)
	if err == nil && len(list) > 0 {
		err = sandpit.Errorf(sandpit.Conflict, "%s is not empty", name)
	}
	if err == nil {
		err = f.guest.Remove(ctx, "", name)
	}
	return toClientError(err)
}

// PosixRename implements sftp.PosixRenameFileCmder: it replaces an existing target.
func (f *files) PosixRename(r *sftp.Request) error {
	ctx, cancel := f.shortContext()
	defer cancel()
	return toClientError(f.guest.Move(ctx, "", r.Filepath, r.Target))
}

// attributes are what a client wants of a file.
type attributes struct {
	mode  *fs.FileMode
	times [2]uint32 // last access and change, in seconds since 1970; both zero: as they are
	size  *int64
}

// attributesOf reads what a request wants to be set.
func attributesOf(r *sftp.Request) (attributes, error) {
	var a attributes
	has, values := r.AttrFlags(), r.Attributes()
	if values == nil {
		return a, sftp.ErrSSHFxBadMessage
	}
	if has.Permissions {
		mode := values.FileMode().Perm()
		a.mode = &mode
	}
	if has.Acmodtime {
		a.times = [2]uint32{values.Atime, values.Mtime}
	}
	if has.Size {
		if values.Size > 1<<62 {
			return a, sftp.ErrSSHFxBadMessage
		}
		size := int64(values.Size)
		a.size = &size
	}
	if has.UidGid {
		return a, sftp.ErrSSHFxOpUnsupported // files belong to the sandbox's user
	}
	return a, nil
}

// setStat changes a file, or notes what is to be changed when it has been written.
func (f *files) setStat(r *sftp.Request) error {
	a, err := attributesOf(r)
	if err != nil {
		return err
	}
	f.mu.Lock()
	u := f.uploads[r.Filepath]
	f.mu.Unlock()
	if u != nil && u.setAttributes(a) {
		return nil
	}
	if a.size != nil {
		if err := f.runProgram(io.Discard, "truncate", "-c", "-s", strconv.FormatInt(*a.size, 10), "--", r.Filepath); err != nil {
			return toClientError(err)
		}
	}
	return toClientError(f.applyAttributes(r.Filepath, a))
}

// applyAttributes sets permissions and times.
func (f *files) applyAttributes(name string, a attributes) error {
	if a.mode != nil {
		if err := f.runProgram(io.Discard, "chmod", fmt.Sprintf("%04o", *a.mode), "--", name); err != nil {
			return err
		}
	}
	if a.times == [2]uint32{} {
		return nil
	}
	for i, which := range []string{"-a", "-m"} {
		if err := f.runProgram(io.Discard, "touch", "-c", which, "-d", "@"+strconv.FormatUint(uint64(a.times[i]), 10), "--", name); err != nil {
			return err
		}
	}
	return nil
}

// Filelist implements sftp.FileLister.
func (f *files) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	switch r.Method {
	case "List":
		ctx, cancel := f.shortContext()
		defer cancel()
		list, err := f.guest.ListDir(ctx, "", r.Filepath, 1)
		if err != nil {
			return nil, toClientError(err)
		}
		infos := make(listing, len(list))
		for i, file := range list {
			infos[i] = info{file}
		}
		return infos, nil
	case "Stat":
		file, err := f.statFile(r.Filepath, true)
		f.mu.Lock()
		u := f.uploads[r.Filepath]
		f.mu.Unlock()
		if u != nil && sandpit.CodeOf(err) == sandpit.NotFound {
			file, err = sandpit.File{Name: path.Base(r.Filepath), Mode: 0o644, Size: u.writtenBytes(), ModifiedAt: time.Now()}, nil
		}
		return listing{info{file}}, toClientError(err)
	}
	return nil, sftp.ErrSSHFxOpUnsupported
}

// Lstat implements sftp.LstatFileLister.
func (f *files) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	file, err := f.statFile(r.Filepath, false)
	return listing{info{file}}, toClientError(err)
}

// Readlink implements sftp.ReadlinkFileLister. The target is always absolute.
func (f *files) Readlink(name string) (string, error) {
	file, err := f.statFile(name, false)
	if err == nil && file.LinkTarget == "" {
		err = sandpit.Errorf(sandpit.Invalid, "%s is not a link", name)
	}
	return file.LinkTarget, toClientError(err)
}

// listing is an sftp.ListerAt.
type listing []os.FileInfo

// ListAt implements sftp.ListerAt.
func (l listing) ListAt(to []os.FileInfo, offset int64) (int, error) {
	if offset < 0 || offset >= int64(len(l)) {
		return 0, io.EOF
	}
	n := copy(to, l[offset:])
	if n < len(to) {
		return n, io.EOF
	}
	return n, nil
}

// info is an os.FileInfo.
type info struct{ file sandpit.File }

func (i info) Name() string      { return i.file.Name }
func (i info) Size() int64       { return i.file.Size }
func (i info) Mode() fs.FileMode { return i.file.Mode }
func (i info) IsDir() bool       { return i.file.Mode.IsDir() }
func (i info) Sys() any          { return nil }

// ModTime is within what the protocol can say.
func (i info) ModTime() time.Time {
	seconds := min(max(i.file.ModifiedAt.Unix(), 0), 1<<32-1)
	return time.Unix(seconds, 0)
}
