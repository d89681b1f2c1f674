package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandpit-dev/sandpit/internal/gen/filesystem"
	"github.com/sandpit-dev/sandpit/internal/gen/filesystem/filesystemconnect"
)

// filesystemService serves filesystem.Filesystem. It acts as root and gives
// what it makes to the user.
type filesystemService struct {
	filesystemconnect.UnimplementedFilesystemHandler // the calls that watch are not served

	guest *Guest
}

// maxEntries bounds one listing.
const maxEntries = 100_000

// target returns the user and the path a call means.
func (s *filesystemService) target(req connect.AnyRequest, p string) (user, string, error) {
	u, err := s.guest.userOf(req.Header())
	if err != nil {
		return u, "", connect.NewError(connect.CodeUnauthenticated, err)
	}
	return u, u.resolve(p), nil
}

// Stat implements the service.
func (s *filesystemService) Stat(_ context.Context, req *connect.Request[filesystem.StatRequest]) (*connect.Response[filesystem.StatResponse], error) {
	_, p, err := s.target(req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	entry, err := describe(p)
	if err != nil {
		return nil, fileError(err)
	}
	return connect.NewResponse(&filesystem.StatResponse{Entry: entry}), nil
}

// MakeDir implements the service.
func (s *filesystemService) MakeDir(_ context.Context, req *connect.Request[filesystem.MakeDirRequest]) (*connect.Response[filesystem.MakeDirResponse], error) {
	u, p, err := s.target(req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(p); err == nil {
		if info.IsDir() {
			return nil, connect.NewError(connect.CodeAlreadyExists, fmt.Errorf("directory already exists: %s", p))
		}
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path already exists but it is not a directory: %s", p))
	}
	if err := makeDirs(p, u); err != nil {
		return nil, fileError(err)
	}
	entry, err := describe(p)
	if err != nil {
		return nil, fileError(err)
	}
	return connect.NewResponse(&filesystem.MakeDirResponse{Entry: entry}), nil
}

// Move implements the service.
func (s *filesystemService) Move(_ context.Context, req *connect.Request[filesystem.MoveRequest]) (*connect.Response[filesystem.MoveResponse], error) {
	u, from, err := s.target(req, req.Msg.GetSource())
	if err != nil {
		return nil, err
	}
	to := u.resolve(req.Msg.GetDestination())
	if _, err := os.Lstat(from); err != nil {
		return nil, fileError(err)
	}
	if err := makeDirs(path.Dir(to), u); err != nil {
		return nil, fileError(err)
	}
	if err := os.Rename(from, to); err != nil {
		return nil, fileError(err)
	}
	entry, err := describe(to)
	if err != nil {
		return nil, fileError(err)
	}
	return connect.NewResponse(&filesystem.MoveResponse{Entry: entry}), nil
}

// Remove implements the service.
func (s *filesystemService) Remove(_ context.Context, req *connect.Request[filesystem.RemoveRequest]) (*connect.Response[filesystem.RemoveResponse], error) {
	_, p, err := s.target(req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(p); err != nil {
		return nil, fileError(err)
	}
	return connect.NewResponse(&filesystem.RemoveResponse{}), nil
}

// ListDir implements the service: parents before children, in the order of
// names.
func (s *filesystemService) ListDir(ctx context.Context, req *connect.Request[filesystem.ListDirRequest]) (*connect.Response[filesystem.ListDirResponse], error) {
	_, p, err := s.target(req, req.Msg.GetPath())
	if err != nil {
		return nil, err
	}
	root, err := filepath.EvalSymlinks(p)
	if err != nil {
		return nil, fileError(err)
	}
	if info, err := os.Stat(root); err != nil || !info.IsDir() {
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("path is not a directory: %s", p))
	}
	l := lister{ctx: ctx}
	if err := l.list(root, p, max(1, int(min(req.Msg.GetDepth(), 1000)))); err != nil {
		return nil, fileError(err)
	}
	return connect.NewResponse(&filesystem.ListDirResponse{Entries: l.entries}), nil
}

type lister struct {
	ctx     context.Context //nolint:containedctx // lives as long as one call
	entries []*filesystem.EntryInfo
}

// list adds what is in dir, which the client knows as shown.
func (l *lister) list(dir, shown string, depth int) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range names {
		entry, err := describe(path.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		if len(l.entries) >= maxEntries {
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("more than %d entries", maxEntries))
		}
		entry.Path = path.Join(shown, e.Name())
		l.entries = append(l.entries, entry)
		if e.IsDir() && depth > 1 {
			if err := l.list(path.Join(dir, e.Name()), entry.GetPath(), depth-1); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// describe tells about a file. A symbolic link has the type and mode of what it
// leads to, and all else of its own.
func describe(p string) (*filesystem.EntryInfo, error) {
	own, err := os.Lstat(p)
	if err != nil {
		return nil, err
	}
	entry := &filesystem.EntryInfo{
		Name: path.Base(p), Path: p,
		Size:         own.Size(),
		Permissions:  own.Mode().String(),
		ModifiedTime: timestamppb.New(own.ModTime()),
	}
	if st, ok := own.Sys().(*syscall.Stat_t); ok {
		entry.Owner = nameOf(passwdFile, st.Uid)
		entry.Group = nameOf(groupFile, st.Gid)
	}
	final := own
	if own.Mode()&fs.ModeSymlink != 0 {
		target, err := filepath.EvalSymlinks(p)
		if err != nil { // it leads nowhere
			link, _ := os.Readlink(p)
			if !path.IsAbs(link) {
				link = path.Join(path.Dir(p), link)
			}
			entry.SymlinkTarget = &link
			return entry, nil
		}
		entry.SymlinkTarget = &target
		if final, err = os.Stat(target); err != nil {
			return nil, err
		}
	}
	entry.Mode = uint32(final.Mode().Perm())
	switch {
	case final.IsDir():
		entry.Type = filesystem.FileType_FILE_TYPE_DIRECTORY
	case final.Mode().IsRegular():
		entry.Type = filesystem.FileType_FILE_TYPE_FILE
	}
	return entry, nil
}

// fileError gives an error of the file system its code.
func fileError(err error) error {
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
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP):
		code = connect.CodeInvalidArgument
	case errors.Is(err, context.Canceled):
		code = connect.CodeCanceled
	}
	return connect.NewError(code, err)
}
