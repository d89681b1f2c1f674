package e2b

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// ReadTree implements sandpit.Files: tar packs the directory inside.
func (g *cloudGuest) ReadTree(ctx context.Context, user, p string) (io.ReadCloser, error) {
	user = g.user(user)
	if g.extended.Load() {
		return g.client.ReadTree(ctx, user, p)
	}
	stream, err := g.openTree(ctx, user, p)
	if err != nil {
		err = fmt.Errorf("read %s: %w", p, err)
		g.report(ctx, sandpit.ReadTree, p, 0, err)
		return nil, err
	}
	g.report(ctx, sandpit.ReadTree, p, 0, nil)
	return stream, nil
}

func (g *cloudGuest) openTree(ctx context.Context, user, p string) (io.ReadCloser, error) {
	if err := g.checkUnconfined(ctx, "read a directory"); err != nil {
		return nil, err
	}
	f, err := g.Stat(ctx, user, p)
	if err != nil {
		return nil, err
	}
	dir, name := f.Path, "."
	if !f.Mode.IsDir() && f.LinkTarget == "" {
		dir, name = path.Split(f.Path)
	}
	ctx, cancel := context.WithCancel(ctx)
	packed, feed := io.Pipe()
	var stderr limitedBuffer
	process, err := g.client.Start(ctx, sandpit.Command{
		Args: []string{"tar", "-cf", "-", "-C", dir, "--", "./" + name}, User: user, Dir: "/", Stdout: feed, Stderr: &stderr,
	})
	if err != nil {
		cancel()
		return nil, err
	}
	go func() {
		status, err := process.Wait(ctx)
		if err == nil && status.Code != 0 {
			err = sandpit.Errorf(sandpit.Internal, "tar: exit status %d: %.200q", status.Code, stderr.Bytes())
		}
		_ = feed.CloseWithError(err) // nil is the end
	}()
	clean, out := io.Pipe()
	go func() { _ = out.CloseWithError(copyTree(out, packed)) }()
	return &treeStream{PipeReader: clean, packed: packed, process: process, cancel: cancel, ctx: ctx}, nil
}

// treeStream is the stream of a directory. Its Close ends tar.
type treeStream struct {
	*io.PipeReader

	packed  *io.PipeReader
	process sandpit.Process
	cancel  context.CancelFunc
	ctx     context.Context //nolint:containedctx // the context of the call
}

// Read implements io.Reader.
func (s *treeStream) Read(p []byte) (int, error) {
	n, err := s.PipeReader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && s.ctx.Err() != nil {
		err = s.ctx.Err()
	}
	return n, err
}

// Close implements io.Closer.
func (s *treeStream) Close() error {
	err := errors.Join(s.PipeReader.Close(), s.packed.Close())
	_ = s.process.Signal(s.ctx, sandpit.SIGKILL) // it has usually ended
	s.cancel()
	return err
}

// copyTree copies a tar stream without sockets, devices and pipes.
func copyTree(to io.Writer, from io.Reader) error {
	in, out := tar.NewReader(from), tar.NewWriter(to)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return treeError(err)
		}
		switch header.Typeflag {
		case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
		default:
			continue
		}
		if header.Name != "./" {
			header.Name = strings.TrimPrefix(header.Name, "./")
		}
		if header.Typeflag == tar.TypeLink {
			header.Linkname = strings.TrimPrefix(header.Linkname, "./")
		}
		header.Format = tar.FormatUnknown
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil { //nolint:gosec // the size is in the header, and the caller bounds it
			return treeError(err)
		}
	}
}

// treeError returns the error for a stream that cannot be read: Invalid, unless the source has an error of its own.
func treeError(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		return sandpit.Errorf(sandpit.Invalid, "not a tar stream: %w", err)
	}
	return err
}

// WriteTree implements sandpit.Files: tar unpacks the stream inside, after this program has checked each member.
func (g *cloudGuest) WriteTree(ctx context.Context, user, p string, stream io.Reader) error {
	user = g.user(user)
	if g.extended.Load() {
		return g.client.WriteTree(ctx, user, p, stream)
	}
	n, err := g.unpackTree(ctx, user, p, stream)
	if err != nil {
		err = fmt.Errorf("write %s: %w", p, err)
	}
	g.report(ctx, sandpit.WriteTree, p, n, err)
	return err
}

func (g *cloudGuest) unpackTree(ctx context.Context, user, p string, stream io.Reader) (int64, error) {
	if err := g.checkUnconfined(ctx, "write a directory"); err != nil {
		return 0, err
	}
	dir, links, err := g.prepareTarget(ctx, user, p)
	if err != nil {
		return 0, err
	}
	checked, feed := io.Pipe()
	var stderr limitedBuffer
	process, err := g.client.Start(ctx, sandpit.Command{
		Args: []string{"tar", "-xpf", "-", "--no-same-owner", "-C", dir}, User: user, Dir: "/", Stdin: checked, Stderr: &stderr,
	})
	if err != nil {
		return 0, err
	}
	check := treeCheck{links: links}
	copied := make(chan error, 1)
	go func() {
		err := check.copy(feed, stream)
		_ = feed.Close() // tar sees the end: the members so far stay unpacked
		copied <- err
	}()
	status, err := process.Wait(ctx)
	_ = checked.Close() // tar reads no more
	select {
	case copyErr := <-copied:
		if copyErr != nil && !errors.Is(copyErr, io.ErrClosedPipe) {
			return check.bytes, copyErr
		}
	case <-ctx.Done():
		_ = process.Signal(context.WithoutCancel(ctx), sandpit.SIGKILL) // its input does not end
		return 0, ctx.Err()
	}
	if err == nil && status.Code != 0 {
		code := sandpit.Internal
		if bytes.Contains(stderr.Bytes(), []byte("No space left")) {
			code = sandpit.Exhausted
		}
		err = sandpit.Errorf(code, "tar: exit status %d: %.200q", status.Code, stderr.Bytes())
	}
	return check.bytes, err
}

// prepareTarget creates a directory if it is missing, and returns its path and the symbolic links below it.
func (g *cloudGuest) prepareTarget(ctx context.Context, user, p string) (dir string, links map[string]bool, err error) {
	if err := g.MakeDir(ctx, user, p); err != nil && sandpit.CodeOf(err) != sandpit.AlreadyExists {
		return "", nil, err
	}
	f, err := g.client.Stat(ctx, user, p)
	if err != nil {
		return "", nil, err
	}
	var stdout, stderr bytes.Buffer
	process, err := g.b.rawCloud().Start(ctx, sandpit.Command{
		Args: []string{"find", f.Path + "/", "-type", "l", "-printf", `%P\0`}, User: user, Dir: "/", Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil {
		return "", nil, err
	}
	status, err := process.Wait(ctx)
	if err != nil {
		return "", nil, err
	}
	if status.Code != 0 {
		return "", nil, sandpit.Errorf(sandpit.Unsupported, "find the links below it: exit status %d: %.200q", status.Code, stderr.Bytes())
	}
	links = make(map[string]bool)
	for name := range strings.SplitSeq(stdout.String(), "\x00") {
		links[name] = true
	}
	return f.Path, links, nil
}

// treeCheck checks the members of a tar stream before tar inside unpacks them.
type treeCheck struct {
	links map[string]bool // symbolic links in the directory
	bytes int64
}

// copy copies the members of a stream until its end, or a member that is not allowed. Invalid.
func (c *treeCheck) copy(to io.Writer, from io.Reader) error {
	source := &firstByte{r: from}
	in, out := tar.NewReader(source), tar.NewWriter(to)
	for {
		header, err := in.Next()
		if errors.Is(err, io.EOF) && !source.seen {
			return sandpit.Errorf(sandpit.Invalid, "not a tar stream: it is empty")
		}
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return errors.Join(treeError(err), out.Flush())
		}
		if err := c.checkMember(header); err != nil {
			return errors.Join(err, out.Flush())
		}
		header.Format = tar.FormatUnknown
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		n, err := io.Copy(out, in) //nolint:gosec // the disk of the sandbox bounds it
		c.bytes += n
		if err != nil {
			return treeError(err)
		}
	}
}

// firstByte is a reader that knows whether there was anything to read.
type firstByte struct {
	r    io.Reader
	seen bool
}

// Read implements io.Reader.
func (f *firstByte) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	f.seen = f.seen || n > 0
	return n, err
}

// checkMember returns Invalid for a member that could change something outside of the directory.
func (c *treeCheck) checkMember(h *tar.Header) error {
	name, ok := insideName(h.Name)
	if !ok || c.passesLink(name) {
		return sandpit.Errorf(sandpit.Invalid, "member %.200q leads out of the directory", h.Name)
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir:
		delete(c.links, name)
	case tar.TypeSymlink:
		c.links[name] = true
	case tar.TypeLink:
		target, ok := insideName(h.Linkname)
		if !ok || c.passesLink(target) || c.links[target] {
			return sandpit.Errorf(sandpit.Invalid, "member %.200q links to %.200q", h.Name, h.Linkname)
		}
	default:
		return sandpit.Errorf(sandpit.Invalid, "member %.200q is neither a file, a directory nor a link", h.Name)
	}
	return nil
}

// passesLink reports whether a directory on the way to a member is a symbolic link.
func (c *treeCheck) passesLink(name string) bool {
	for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
		if c.links[dir] {
			return true
		}
	}
	return false
}

// insideName returns the clean name of a member, and whether it is below the directory.
func insideName(name string) (string, bool) {
	if path.IsAbs(name) || strings.Contains(name, "\x00") {
		return "", false
	}
	clean := path.Clean(name)
	return clean, clean != ".." && !strings.HasPrefix(clean, "../")
}
