package client

import (
	"bytes"
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// newWorkspace returns the sandbox's files as whole files and trees. Relative paths begin in the
// sandbox's working directory.
func (s *Sandbox) newWorkspace() (*workspace.Workspace, error) {
	dir := s.Spec.WorkDir
	if dir == sandpit.HomeDir {
		dir = ""
	}
	return workspace.New(s.guest, workspace.Options{Dir: dir})
}

// ReadFile returns the content of a file of at most 64 MiB; Guest().ReadFile reads larger ones as
// a stream. A relative path begins in the working directory of the sandbox's Spec, or in
// sandpit.DefaultWorkDir if that has none.
//
// NotFound: there is no such file; the text contains "not found". Exhausted: it is larger.
// Invalid: it is a directory.
func (s *Sandbox) ReadFile(ctx context.Context, path string) ([]byte, error) {
	w, err := s.newWorkspace()
	if err != nil {
		return nil, err
	}
	return w.ReadFile(ctx, path)
}

// WriteFile replaces the content of a file, and creates the file and its directories if they are
// missing. Paths are as for ReadFile.
func (s *Sandbox) WriteFile(ctx context.Context, path string, content []byte) error {
	w, err := s.newWorkspace()
	if err != nil {
		return err
	}
	return w.WriteFile(ctx, path, bytes.NewReader(content))
}

// CopyTo copies a file or directory of this machine into the sandbox. If target ends in a slash
// or is a directory, the copy goes into it under its own name; otherwise target is the copy's
// name. Directories are merged, files replaced, links copied as links.
//
// NotFound: no such source. Exhausted: no space in the sandbox.
func (s *Sandbox) CopyTo(ctx context.Context, source, target string) error {
	w, err := s.newWorkspace()
	if err != nil {
		return err
	}
	return w.CopyTo(ctx, source, target)
}

// CopyFrom copies a file or directory of the sandbox to this machine; source and target are as in
// CopyTo the other way round. Nothing outside the copy is written, whatever the sandbox contains:
// links that lead out of it, and special files, are left out and their paths returned.
//
// NotFound: no such source. Exhausted: more than 10 GiB, or a million files.
func (s *Sandbox) CopyFrom(ctx context.Context, source, target string) (skipped []string, err error) {
	w, err := s.newWorkspace()
	if err != nil {
		return nil, err
	}
	return w.CopyFrom(ctx, source, target)
}
