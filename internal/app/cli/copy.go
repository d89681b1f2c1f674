package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

type copyCommand struct {
	user  string
	quiet bool
}

// copyEnd is the source or the target of a copy.
type copyEnd struct {
	// sandbox is "" for this machine.
	sandbox string
	path    string
}

const stdioName = "-"

func newCopy(a *app) *cobra.Command {
	var o copyCommand
	cmd := &cobra.Command{
		Use:   "cp [flags] SOURCE... SANDBOX:PATH\n  sandpit cp [flags] SANDBOX:PATH... TARGET",
		Short: "Copy files and directories into a sandbox of a server, or out of it",
		Long: `Copy files and directories into a sandbox of a server, or out of it.

A directory is copied with all its contents. If the target is a directory, or ends in
a slash, the copy is created in it with the name of the source; otherwise the target is
the name of the copy. Relative paths in the sandbox start at its working directory.
"-" is standard input or output: a tar stream is unpacked into a directory, a directory
is written as a tar stream, and a file is copied unchanged.
Write ./ before a path of this machine that contains a colon.
Only the target is written, whatever the sandbox sends. Symbolic links that lead out of
it are omitted and reported.`,
		Example: `  sandpit cp ./project work:/workspace
  sandpit cp work:result.json .
  tar c src | sandpit cp - work:/workspace/
  sandpit cp work:/var/log - | tar t`,
		Args: wantArgs(2, -1, "a source or a target"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			if strings.ContainsAny(begun, "/.") {
				return nil, cobra.ShellCompDirectiveDefault
			}
			var names []string
			for _, name := range a.sandboxNames(cmd.Context(), nil, begun) {
				name, _, _ = strings.Cut(name, "\t")
				names = append(names, name+":")
			}
			return names, cobra.ShellCompDirectiveNoSpace
		},
		RunE: a.withClient(o.run),
	}
	f := cmd.Flags()
	f.StringVarP(&o.user, "user", "u", "", "`user` in the sandbox that reads or writes (default the sandbox's)")
	f.BoolP("recursive", "r", false, "accepted for compatibility: a directory is always copied with its contents")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show no progress")
	return cmd
}

// parseCopyEnd parses SANDBOX:PATH or a path of this machine.
func parseCopyEnd(text string) copyEnd {
	name, p, ok := strings.Cut(text, ":")
	if !ok || name == "" || strings.Contains(name, "/") || strings.HasPrefix(name, ".") {
		return copyEnd{path: text}
	}
	return copyEnd{sandbox: name, path: p}
}

func (o *copyCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	target := parseCopyEnd(args[len(args)-1])
	sources := make([]copyEnd, len(args)-1)
	name := target.sandbox
	for i, arg := range args[:len(args)-1] {
		sources[i] = parseCopyEnd(arg)
		if err := checkCopyEnds(sources[i], target); err != nil {
			return err
		}
		if len(sources) > 1 && (sources[i] == copyEnd{path: stdioName} || target == copyEnd{path: stdioName}) {
			return sandpit.Errorf(sandpit.Invalid, "\"-\" can be combined with one source or target only")
		}
		name = cmp.Or(name, sources[i].sandbox)
	}
	if len(sources) > 1 && !strings.HasSuffix(target.path, "/") {
		target.path += "/" // several sources need a directory
	}
	finder := &finder{client: c}
	for _, s := range sources {
		p := newCopyProgress(a, o)
		err := copyJob{s, target, o.user, p}.copyFiles(ctx, a, c, finder)
		p.clear()
		if err != nil {
			return err
		}
	}
	return nil
}

// checkCopyEnds checks that a copy is between this machine and a sandbox.
func checkCopyEnds(source, target copyEnd) error {
	switch {
	case source.sandbox == "" && target.sandbox == "":
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "neither %q nor %q is in a sandbox", source.path, target.path),
			"write SANDBOX:PATH for a path in a sandbox")
	case source.sandbox != "" && target.sandbox != "":
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "cannot copy from one sandbox to another directly"),
			"for example: sandpit cp A:PATH - | sandpit cp - B:PATH/")
	}
	return nil
}

// copyJob is one copy.
type copyJob struct {
	source, target copyEnd
	user           string
	progress       *copyProgress
}

func (x copyJob) copyFiles(ctx context.Context, a *app, c *client.Client, f *finder) error {
	id, err := f.findID(ctx, cmp.Or(x.target.sandbox, x.source.sandbox))
	if err != nil {
		return err
	}
	s, err := c.Sandboxes.Get(ctx, id)
	if err != nil {
		return err
	}
	guest := countedFiles{s.Guest(), x.progress}
	w, err := workspace.New(guest, workspace.Options{User: x.user, Dir: cmp.Or(s.Spec.WorkDir, sandpit.DefaultWorkDir)})
	if err != nil {
		return err
	}
	inside := func(p string) string {
		if path.IsAbs(p) {
			return p
		}
		kept := path.Join(cmp.Or(s.Spec.WorkDir, sandpit.DefaultWorkDir), p)
		if strings.HasSuffix(p, "/") {
			kept += "/"
		}
		return kept
	}
	switch {
	case x.source == copyEnd{path: stdioName}:
		return copyStreamIn(ctx, guest, x.user, inside(x.target.path), a.In)
	case x.target == copyEnd{path: stdioName}:
		return copyStreamOut(ctx, guest, x.user, inside(x.source.path), a.Out)
	case x.target.sandbox != "":
		x.progress.measureSource(x.source.path)
		return w.CopyTo(ctx, x.source.path, inside(x.target.path))
	}
	skipped, err := w.CopyFrom(ctx, inside(x.source.path), x.target.path)
	for _, name := range skipped {
		fmt.Fprintf(a.Err, "sandpit: left out: %s\n", escapeText(name))
	}
	return err
}

// copyStreamIn unpacks a tar stream into a directory, or writes a file.
func copyStreamIn(ctx context.Context, files sandpit.Files, user, target string, from io.Reader) error {
	into := strings.HasSuffix(target, "/")
	if !into {
		_, err := files.ListDir(ctx, user, target, 1)
		into = err == nil || sandpit.CodeOf(err) == sandpit.Exhausted // the directory has many entries
	}
	if into {
		return files.WriteTree(ctx, user, target, from)
	}
	return files.WriteFile(ctx, user, target, from, sandpit.WriteOptions{})
}

// copyStreamOut writes a file unchanged, and a directory as a tar stream.
func copyStreamOut(ctx context.Context, files sandpit.Files, user, source string, to io.Writer) error {
	r, err := files.ReadFile(ctx, user, source)
	if sandpit.CodeOf(err) == sandpit.Invalid {
		r, err = files.ReadTree(ctx, user, source)
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(to, r)
	return errors.Join(err, r.Close())
}

// copyProgress shows the progress of a copy on a terminal.
type copyProgress struct {
	draw  func(done, total int64)
	clear func()
	done  atomic.Int64
	total atomic.Int64
}

func newCopyProgress(a *app, o *copyCommand) *copyProgress {
	p := &copyProgress{clear: func() {}}
	if !o.quiet {
		p.draw, p.clear = newProgress(a.Err, "Copying")
	}
	return p
}

// measureSource determines the size of the source.
func (p *copyProgress) measureSource(source string) {
	if p.draw == nil {
		return
	}
	const most = 100_000 // files: a progress bar need not be exact
	n, sum := 0, int64(0)
	_ = filepath.WalkDir(source, func(_ string, entry fs.DirEntry, err error) error {
		if n++; n > most {
			sum = 0
			return fs.SkipAll
		}
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // the copy itself reports it
		}
		if info, err := entry.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	p.total.Store(sum)
}

func (p *copyProgress) addBytes(n int) {
	if p.draw != nil {
		p.draw(p.done.Add(int64(n)), p.total.Load())
	}
}

// countedFiles is a guest whose file transfers are counted.
type countedFiles struct {
	sandpit.Guest
	progress *copyProgress
}

// WriteFile implements sandpit.Files.
func (w countedFiles) WriteFile(ctx context.Context, user, name string, content io.Reader, o sandpit.WriteOptions) error {
	return w.Guest.WriteFile(ctx, user, name, countingReader{content, w.progress.addBytes}, o)
}

// WriteTree implements sandpit.Files.
func (w countedFiles) WriteTree(ctx context.Context, user, name string, tar io.Reader) error {
	return w.Guest.WriteTree(ctx, user, name, countingReader{tar, w.progress.addBytes})
}

// ReadFile implements sandpit.Files.
func (w countedFiles) ReadFile(ctx context.Context, user, name string) (io.ReadCloser, error) {
	return w.countReads(w.Guest.ReadFile(ctx, user, name))
}

// ReadTree implements sandpit.Files.
func (w countedFiles) ReadTree(ctx context.Context, user, name string) (io.ReadCloser, error) {
	return w.countReads(w.Guest.ReadTree(ctx, user, name))
}

func (w countedFiles) countReads(r io.ReadCloser, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{countingReader{r, w.progress.addBytes}, r}, nil
}
