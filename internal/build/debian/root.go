package debian

import (
	"archive/tar"
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/mirror"
)

const (
	// maxRoot bounds the fetched packages, and the unpacked files, in bytes.
	maxRoot = 16 << 30
	// packageDir is the directory of the image with the packages to install.
	packageDir = "var/cache/sandpit-packages"
)

// Root returns an archive of the initial root file system: the files of the first packages,
// and all package files. The command that Configure returns must then run in it as root. The
// caller closes the archive.
//
// NotFound: the mirror no longer has a version of a package. Otherwise as Source.Plan.
func (s Source) Root(ctx context.Context, plan Plan, p Progress) (io.ReadCloser, error) {
	var total int64
	list := make([]mirror.Wanted, len(plan.Packages))
	for i, one := range plan.Packages {
		if total += one.Size; total > maxRoot {
			return nil, sandpit.Errorf(sandpit.Exhausted, "the packages have more than %d bytes", int64(maxRoot))
		}
		list[i] = mirror.Wanted{Name: one.Name, Path: one.Path, Pin: mirror.Pin{Size: one.Size, Digest: one.SHA256}}
	}
	c, err := s.openClient(p, total)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.WriteArchive(ctx, list, func(out io.Writer, files []*os.File) error { return writeRoot(ctx, out, plan, files) })
}

// noDaemons is a policy-rc.d that prevents packages from starting services while they are
// installed.
const noDaemons = "#!/bin/sh\nexit 101\n"

// writeRoot writes the archive.
func writeRoot(ctx context.Context, out io.Writer, plan Plan, files []*os.File) error {
	w := tar.NewWriter(out)
	for _, dir := range []string{"usr/", "usr/bin/", "usr/lib/", "usr/lib64/", "usr/sbin/"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, Format: tar.FormatPAX}); err != nil {
			return err
		}
	}
	for _, dir := range []string{"bin", "lib", "lib64", "sbin"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: dir, Linkname: "usr/" + dir, Mode: 0o777, Format: tar.FormatPAX}); err != nil {
			return err
		}
	}
	left := int64(maxRoot)
	var list strings.Builder
	for i, one := range plan.Packages {
		if err := ctx.Err(); err != nil {
			return err
		}
		if one.First {
			if err := copyFiles(w, files[i], &left); err != nil {
				return fmt.Errorf("the package %s: %w", one.Name, err)
			}
			if _, err := files[i].Seek(0, io.SeekStart); err != nil {
				return err
			}
		}
		sub := ""
		if one.First {
			sub = "first/"
		}
		name := fmt.Sprintf("%s%s_%s.deb", sub, one.Name, one.SHA256[:16])
		list.WriteString(withFilename(one.Control, "./"+name) + "\n")
		if err := addFile(w, packageDir+"/"+name, 0o644, one.Size, files[i]); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		name string
		mode int64
		text string
	}{
		{packageDir + "/Packages", 0o644, list.String()},
		{"var/lib/dpkg/status", 0o644, ""},
		{"var/lib/dpkg/available", 0o644, ""},
		{"usr/sbin/policy-rc.d", 0o755, noDaemons},
		{"etc/apt/sources.list.d/debian.sources", 0o644, aptSources(plan.Request.Suite)},
	} {
		if err := addFile(w, f.name, f.mode, int64(len(f.text)), strings.NewReader(f.text)); err != nil {
			return err
		}
	}
	return w.Close()
}

func addFile(w *tar.Writer, name string, mode, size int64, contents io.Reader) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := io.Copy(w, contents)
	return err
}

// withFilename returns a package's paragraph with another Filename field.
func withFilename(control, path string) string {
	var b strings.Builder
	skip := false
	for line := range strings.Lines(control) {
		if line[0] != ' ' && line[0] != '\t' {
			skip = strings.HasPrefix(strings.ToLower(line), "filename:")
		}
		if !skip {
			b.WriteString(line)
		}
	}
	return b.String() + "Filename: " + path + "\n"
}

// aptSources returns apt's list of sources in the image, for installing more packages. It uses
// the default mirror, because the sandbox may not reach the configured one.
func aptSources(suite string) string {
	const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	var b strings.Builder
	for _, p := range releaseParts(suite) {
		fmt.Fprintf(&b, "Types: deb\nURIs: http://%s/%s\nSuites: %s\nComponents: main\nSigned-By: %s\n\n", Host, p.base, p.suite, keyring)
	}
	return b.String()
}

// configureScript installs the packages in an image.
//
//go:embed configure.sh
var configureScript string

// Configure returns the command that completes an image of Root. It runs as root and needs no
// network.
func Configure(plan Plan) []string {
	args := []string{"/bin/sh", "-c", configureScript, "sh", "/" + packageDir}
	return append(args, plan.Request.Packages...)
}
