package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit/internal/files/beneath"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem"
)

// filesystemService serves filesystem.Filesystem. It acts as root and gives the files that it creates to the user.
type filesystemService struct{ guest *Guest }

const (
	// maxEntries bounds one listing.
	maxEntries = 100_000
	maxDepth   = 1000
)

var errTooMany = connect.NewError(connect.CodeResourceExhausted,
	fmt.Errorf("more than %d entries; list fewer levels, or a part", maxEntries))

// targetOf returns the target that a call names. The caller closes it.
func (s *filesystemService) targetOf(req connect.AnyRequest, p string, follow bool) (*target, error) {
	u, err := s.guest.userOf(req.Header())
	if err != nil {
		return nil, userError(err)
	}
	pl, err := resolveTarget(req.Header(), u, p, follow)
	if err != nil {
		return nil, fileError(err, nil)
	}
	return pl, nil
}

func (s *filesystemService) newDescriber(req connect.AnyRequest) *describer {
	return &describer{names: names{accounts: s.guest.accounts}, within: confinementOf(req.Header())}
}

// Stat implements the service.
func (s *filesystemService) Stat(_ context.Context, req *connect.Request[filesystem.StatRequest]) (*connect.Response[filesystem.StatResponse], error) {
	p, err := s.targetOf(req, req.Msg.GetPath(), false)
	if err != nil {
		return nil, err
	}
	defer p.closeRoot()
	entry, err := s.newDescriber(req).describeTarget(p)
	if err != nil {
		return nil, fileError(err, p)
	}
	return connect.NewResponse(&filesystem.StatResponse{Entry: entry}), nil
}

// MakeDir implements the service.
func (s *filesystemService) MakeDir(_ context.Context, req *connect.Request[filesystem.MakeDirRequest]) (*connect.Response[filesystem.MakeDirResponse], error) {
	p, err := s.targetOf(req, req.Msg.GetPath(), true)
	if err != nil {
		return nil, err
	}
	defer p.closeRoot()
	if info, err := p.root.Lstat(p.rel); err == nil {
		if info.IsDir() {
			return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory already exists: %s", p.path))
		}
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path already exists but it is not a directory: %s", p.path))
	}
	if err := makeDirs(p.root, p.rel, p.user); err != nil {
		return nil, fileError(err, p)
	}
	entry, err := s.newDescriber(req).describeTarget(p)
	if err != nil {
		return nil, fileError(err, p)
	}
	return connect.NewResponse(&filesystem.MakeDirResponse{Entry: entry}), nil
}

// Move implements the service.
func (s *filesystemService) Move(_ context.Context, req *connect.Request[filesystem.MoveRequest]) (*connect.Response[filesystem.MoveResponse], error) {
	from, err := s.targetOf(req, req.Msg.GetSource(), false)
	if err != nil {
		return nil, err
	}
	defer from.closeRoot()
	to, err := s.targetOf(req, req.Msg.GetDestination(), false)
	if err != nil {
		return nil, err
	}
	defer to.closeRoot()
	if _, err := from.root.Lstat(from.rel); err != nil {
		return nil, fileError(err, from)
	}
	if err := to.makeParents(); err != nil {
		return nil, fileError(err, to)
	}
	if err := from.root.Rename(from.rel, to.root, to.rel); err != nil {
		return nil, fileError(err, to)
	}
	entry, err := s.newDescriber(req).describeTarget(to)
	if err != nil {
		return nil, fileError(err, to)
	}
	return connect.NewResponse(&filesystem.MoveResponse{Entry: entry}), nil
}

// Remove implements the service. It removes a symbolic link, not the link's target.
func (s *filesystemService) Remove(_ context.Context, req *connect.Request[filesystem.RemoveRequest]) (*connect.Response[filesystem.RemoveResponse], error) {
	p, err := s.targetOf(req, req.Msg.GetPath(), false)
	if err != nil {
		return nil, err
	}
	defer p.closeRoot()
	if err := p.root.RemoveAll(p.rel); err != nil {
		return nil, fileError(err, p)
	}
	return connect.NewResponse(&filesystem.RemoveResponse{}), nil
}

// ListDir implements the service: parents before children, in the order of
// names.
func (s *filesystemService) ListDir(ctx context.Context, req *connect.Request[filesystem.ListDirRequest]) (*connect.Response[filesystem.ListDirResponse], error) {
	p, err := s.targetOf(req, req.Msg.GetPath(), true)
	if err != nil {
		return nil, err
	}
	defer p.closeRoot()
	info, err := p.root.Lstat(p.rel)
	if err != nil {
		return nil, fileError(err, p)
	}
	if !info.IsDir() {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", p.path))
	}
	dir, err := p.root.OpenRoot(p.rel)
	if err != nil {
		return nil, fileError(err, p)
	}
	defer dir.Close()
	l := lister{ctx: ctx, describer: s.newDescriber(req)}
	if err := l.listDir(dir, p.real, p.path, max(1, int(min(req.Msg.GetDepth(), maxDepth)))); err != nil {
		return nil, fileError(err, p)
	}
	return connect.NewResponse(&filesystem.ListDirResponse{Entries: l.entries}), nil
}

type lister struct {
	ctx       context.Context //nolint:containedctx // lives as long as one call
	describer *describer
	entries   []*filesystem.EntryInfo
}

// listDir adds the entries of dir, whose path on the machine is real and whose path for the client is shown.
func (l *lister) listDir(dir *beneath.Root, real, shown string, depth int) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	names, err := readDir(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		entry, err := l.describer.describeFile(dir, name, path.Join(real, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		if len(l.entries) >= maxEntries {
			return errTooMany
		}
		entry.Name = strings.ToValidUTF8(name, "\uFFFD")
		entry.Path = strings.ToValidUTF8(path.Join(shown, name), "\uFFFD")
		l.entries = append(l.entries, entry)
		isDir := entry.GetType() == filesystem.FileType_FILE_TYPE_DIRECTORY && entry.SymlinkTarget == nil
		if !isDir || depth <= 1 {
			continue
		}
		if err := l.listBelow(dir, name, path.Join(real, name), entry.GetPath(), depth-1); err != nil {
			return err
		}
	}
	return nil
}

func (l *lister) listBelow(parent *beneath.Root, name, real, shown string, depth int) error {
	dir, err := parent.OpenRoot(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return l.listDir(dir, real, shown, depth)
}

// readDir returns the sorted names in dir.
func readDir(dir *beneath.Root) ([]string, error) {
	names, err := dir.ReadNames(".", maxEntries+1)
	if err != nil {
		return nil, err
	}
	if len(names) > maxEntries {
		return nil, errTooMany
	}
	slices.Sort(names)
	return names, nil
}

// fileError gives an error of the file system its code and, with a target, the path that the client knows.
func fileError(err error, p *target) error {
	if _, ok := errors.AsType[*connect.Error](err); ok {
		return err
	}
	code := connect.CodeInternal
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = connect.CodeNotFound
	case errors.Is(err, fs.ErrExist):
		code = connect.CodeAlreadyExists
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		code = connect.CodePermissionDenied
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		code = connect.CodeResourceExhausted
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP),
		errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.EXDEV):
		code = connect.CodeInvalidArgument
	case errors.Is(err, errors.ErrUnsupported):
		code = connect.CodeUnimplemented
	case errors.Is(err, context.Canceled):
		code = connect.CodeCanceled
	}
	return connect.NewError(code, p.clientError(err))
}
