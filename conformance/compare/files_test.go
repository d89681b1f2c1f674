package compare_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func fileProbes() []probe {
	return []probe{
		{
			name: "files of the image",
			want: "from the image\nfrom the image\ntext\n644 root text\n644 root plain\n755 root script\n",
			do:   sh("cd /data; cat text link; readlink link; stat -c '%a %U %n' text plain script"),
		},
		{
			name: "a file of the image changed",
			want: "from the image\nmore\n",
			do:   sh("cp /data/text /data/copy; echo more >> /data/copy; cat /data/copy; rm /data/copy; ls /data/copy 2>/dev/null; true"),
		},
		{
			name: "an image's directory removed and made again",
			want: "0\n",
			do:   shIn(sandpit.Spec{}, "rm -r /data && mkdir /data && ls -A /data | wc -l"),
		},
		{
			name: "modes",
			want: "600\n4755\n2755\n1777\n0\n",
			do:   sh("cd /tmp; for m in 600 4755 2755 1777 0; do touch f; chmod $m f; stat -c %a f; done; rm -f f"),
		},
		{
			name: "owners by number",
			want: "70000 70001\n",
			do:   sh("cd /tmp; touch f; chown 70000:70001 f; stat -c '%u %g' f; rm f"),
		},
		{
			name: "hard links",
			want: "2\nx\ny\n",
			do:   sh("cd /tmp; echo x > a; ln a b; stat -c %h a; echo y >> b; cat a; rm a b"),
		},
		{
			name: "a symbolic link to nothing",
			want: "stderr: cat: can't open 'l': No such file or directory\n",
			do:   sh("cd /tmp; ln -s nowhere l; cat l; rm l"),
		},
		{
			name: "a loop of symbolic links",
			want: "stderr: cat: can't open 'l1': Too many levels of symbolic links\n",
			do:   sh("cd /tmp; ln -s l2 l1; ln -s l1 l2; cat l1; rm l1 l2"),
		},
		{
			name: "a name of 255 bytes",
			want: "x\n",
			do:   sh("cd /tmp; n=$(printf %255s | tr ' ' x); echo x > $n; cat $n; rm $n"),
		},
		{
			name: "a name of 256 bytes",
			want: "no\n",
			do:   sh("cd /tmp; n=$(printf %256s | tr ' ' x); (echo x > $n) 2>/dev/null || echo no"),
		},
		{
			name: "a path of 5000 bytes",
			want: "File name too long\n",
			do:   sh("cat /$(printf %2500s | sed 's/ /a\\//g') 2>&1 | grep -o 'File name too long'"),
		},
		{
			name: "a name that is no UTF-8",
			want: "1\nx\n",
			do:   sh("cd /tmp; n=$(printf 'a\\377b'); echo x > \"$n\"; ls | grep -c a.*b; cat a?b; rm a?b"),
		},
		{
			name: "a name with a line feed",
			want: "x\n",
			do:   sh("cd /tmp; n=$(printf 'a\\nb'); echo x > \"$n\" && cat \"$n\"; rm \"$n\""),
		},
		{
			name: "upper and lower case",
			want: "a\nb\n",
			do:   sh("cd /tmp; echo a > case; echo b > CASE; cat case CASE; rm case CASE"),
		},
		{
			name:   "a file with a hole",
			gvisor: "1073741824\n1048576\n", docker: "1073741824\n0\n",
			why: "gVisor reports the file's whole size as used, but does not use memory for it",
			do:  sh("cd /tmp; truncate -s 1G f; stat -c %s f; du -k f | cut -f1; rm f"),
		},
		{
			name: "a time that is set",
			want: "981173106\n981173106\n",
			do:   sh("cd /tmp; touch -d '2001-02-03 04:05:06' f; stat -c %Y f; date -r f +%s; rm f"),
		},
		{
			name: "an open file removed",
			want: "x\n",
			do:   sh("cd /tmp; echo x > f; exec 3< f; rm f; cat <&3"),
		},
		{
			name: "renaming over a file",
			want: "a\n",
			do:   sh("cd /tmp; echo a > a; echo b > b; mv a b; cat b; ls a 2>/dev/null; rm b"),
		},
		{
			name: "renaming a directory of the image",
			want: "from the image\n",
			do:   shIn(sandpit.Spec{}, "mv /data /moved; cat /moved/text"),
		},
		{
			name: "removing a directory that is not empty",
			want: "stderr: rmdir: '/tmp/d': Directory not empty\n",
			do:   sh("mkdir -p /tmp/d/e; rmdir /tmp/d; rm -r /tmp/d"),
		},
		{
			name: "appending from two programs",
			want: "400\n",
			do:   sh("cd /tmp; for i in 1 2; do (for j in $(seq 200); do echo line >> f; done) & done; wait; wc -l < f; rm f"),
		},
		{
			name: "20 MB written and read",
			want: "75f1ca8aa49ebdd4c90c2050082790f9  -\n20000000\n",
			do:   sh("cd /tmp; yes 0123456789abcde | head -c 20000000 > f; md5sum < f; wc -c < f; rm f"),
		},
		{
			name: "1000 small files",
			want: "1000\nffa48930760943ed6ef1c69c5ee835f8  -\n",
			do:   sh("mkdir /tmp/many; cd /tmp/many; for i in $(seq 1000); do echo $i > $i; done; ls | wc -l; cat * | md5sum; rm -r /tmp/many"),
		},
		{
			name: "a directory 100 deep",
			want: "205\n",
			do:   sh("cd /tmp; for i in $(seq 100); do mkdir d; cd d; done; pwd | wc -c; rm -r /tmp/d"),
		},
		{
			name: "the mode of /tmp",
			want: "1777\n",
			do:   sh("stat -c %a /tmp"),
		},
		{
			name:   "generated files of /etc",
			gvisor: "[nothing]", docker: "hostname\nhosts\nmtab\nresolv.conf\n",
			why: "gVisor's sandboxes have only the files of the image",
			do:  sh("cd /etc; for f in hostname hosts mtab resolv.conf; do [ -e $f ] && echo $f; done; true"),
		},
		{
			name: "swap files",
			want: "no\n",
			do:   sh("swapon /data/text 2>/dev/null || echo no"),
		},
		{
			name: "sync",
			want: "x\n",
			do:   sh("echo x > /tmp/s && sync && cat /tmp/s; rm /tmp/s"),
		},
	}
}

func outsideProbes() []probe {
	return []probe{
		{
			name: "a file written and read",
			want: "\"text\\x00\\xff\"",
			do:   outside(writeAndRead),
		},
		{
			name: "a file replaced keeps its mode",
			want: "/tmp/desk/f -rwxr-x--x root:root 5 newer",
			do:   outside(replaceFile),
		},
		{
			name: "the mode and owner of a new file",
			want: "/home/app/own -rw-r--r-- app:app 1",
			do:   outside(newFile),
		},
		{
			name: "marks of a file",
			want: "done /tmp/desk/f -rw-r--r-- root:root 1 map[kind:test]",
			do:   outside(marks),
		},
		{
			name: "32 MB written and read",
			want: "yes",
			do:   outside(bigFile),
		},
		{
			name: "names of all kinds",
			want: "done, done, done, done, done, done, done, done, refused: invalid",
			do:   outside(oddNames),
		},
		{
			name: "a link described",
			want: "/tmp/desk/l Lrw-r--r-- root:root -> /tmp/desk/to\nx",
			do:   outside(linkStat),
		},
		{
			name: "a directory listed",
			want: "/tmp/desk/a -rw-r--r-- root:root 1\n/tmp/desk/b drwxr-xr-x root:root\n/tmp/desk/b/c drwxr-xr-x root:root",
			do:   outside(list),
		},
		{
			name: "a directory made twice",
			want: "done, refused: already_exists, /tmp/desk/x/y drwxr-xr-x root:root",
			do:   outside(makeTwice),
		},
		{
			name: "a file moved",
			want: "done, refused: not_found, /tmp/desk/new/to -rw-r--r-- root:root 1, refused: not_found",
			do:   outside(move),
		},
		{
			name: "a tree removed, and again",
			want: "done, done, refused: not_found",
			do:   outside(removeTwice),
		},
		{
			name: "reading what is no file",
			want: "refused: invalid, refused: invalid",
			do:   outside(readDirectory),
		},
		{
			name: "reading what is not there",
			want: "refused: not_found, refused: not_found",
			do:   outside(readMissing),
		},
		{
			name: "reading what another user may not",
			want: "x, done",
			do:   outside(readForbidden),
		},
		{
			name: "writing below a file",
			want: "refused: invalid",
			do:   outside(writeBelowFile),
		},
		{
			name: "a tree carried in and out",
			want: "./ 5 755 0 \nd/ 5 750 0 \nd/f 0 640 4 \nd/l 2 777 0 f",
			do:   outside(carryTree),
		},
		{
			name: "a stream that leads out of its directory",
			want: "refused: invalid, refused: not_found",
			do:   outside(hostileTree),
		},
		{
			name: "a directory watched",
			want: "create f\nwrite f\nchmod f\nrename f\ncreate g\nremove g\ncreate last",
			do:   outside(watch),
		},
	}
}

// desk is where a probe of files does its work.
type desk struct {
	*testing.T

	g   sandpit.Guest
	dir string
}

// outside has a probe work in an empty directory.
func outside(do func(d desk) string) func(*testing.T, *place) string {
	return func(t *testing.T, p *place) string {
		t.Helper()
		d := desk{T: t, g: p.box.Guest(), dir: "/tmp/desk"}
		d.must(d.g.Remove(within(t), "", d.dir))
		d.must(d.g.MakeDir(within(t), "", d.dir))
		return do(d)
	}
}

func (d desk) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

func (d desk) path(name string) string { return d.dir + "/" + name }

func (d desk) write(name, text string) {
	d.Helper()
	d.must(d.g.WriteFile(within(d.T), "", d.path(name), strings.NewReader(text), sandpit.WriteOptions{}))
}

// read returns what a file holds, or why not.
func (d desk) read(user, path string) string {
	r, err := d.g.ReadFile(within(d.T), user, path)
	if err != nil {
		return failure(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return failure(err)
	}
	return string(data)
}

// stat describes a file without its times.
func (d desk) stat(name string) string {
	f, err := d.g.Stat(within(d.T), "", d.path(name))
	if err != nil {
		return failure(err)
	}
	return about(f)
}

func about(f sandpit.File) string {
	text := fmt.Sprint(f.Path, " ", f.Mode, " ", f.Owner, ":", f.Group)
	if f.Mode.IsRegular() {
		text += fmt.Sprint(" ", f.Size)
	}
	if f.LinkTarget != "" {
		text += " -> " + f.LinkTarget
	}
	if len(f.Metadata) > 0 {
		text += fmt.Sprint(" ", f.Metadata)
	}
	return text
}

func writeAndRead(d desk) string {
	d.write("a/b/c", "text\x00\xff")
	return fmt.Sprintf("%q", d.read("", d.path("a/b/c")))
}

func replaceFile(d desk) string {
	d.must(d.g.WriteFile(within(d.T), "", d.path("f"), strings.NewReader("old"), sandpit.WriteOptions{Mode: 0o751}))
	d.write("f", "newer")
	return d.stat("f") + " " + d.read("", d.path("f"))
}

func newFile(d desk) string {
	d.must(d.g.WriteFile(within(d.T), "app", "own", strings.NewReader("x"), sandpit.WriteOptions{}))
	f, err := d.g.Stat(within(d.T), "app", "own")
	d.must(err)
	d.must(d.g.Remove(within(d.T), "app", "own"))
	return about(f)
}

func marks(d desk) string {
	err := d.g.WriteFile(within(d.T), "", d.path("f"), strings.NewReader("x"), sandpit.WriteOptions{Metadata: map[string]string{"kind": "test"}})
	return failure(err) + " " + d.stat("f")
}

func bigFile(d desk) string {
	data := bytes.Repeat([]byte("0123456789abcdef"), 2<<20)
	d.must(d.g.WriteFile(within(d.T), "", d.path("big"), bytes.NewReader(data), sandpit.WriteOptions{}))
	return yes(d.read("", d.path("big")) == string(data))
}

func oddNames(d desk) string {
	var results []string
	for _, name := range []string{"a b", "ä", "a\nb", "*", "-rf", "%2e", `\`, strings.Repeat("x", 255), strings.Repeat("x", 256)} {
		err := d.g.WriteFile(within(d.T), "", d.path(name), strings.NewReader(name), sandpit.WriteOptions{})
		if err == nil && d.read("", d.path(name)) != name {
			err = errUnexpected
		}
		results = append(results, failure(err))
	}
	return strings.Join(results, ", ")
}

func linkStat(d desk) string {
	d.write("to", "x")
	d.must(d.link("to", "l"))
	return d.stat("l") + "\n" + d.read("", d.path("l"))
}

// link makes a symbolic link.
func (d desk) link(target, name string) error {
	p, err := d.g.Start(within(d.T), sandpit.Command{Args: []string{"ln", "-s", target, name}, Dir: d.dir})
	if err != nil {
		return err
	}
	_, err = p.Wait(within(d.T))
	return err
}

func list(d desk) string {
	d.write("b/c/d", "x")
	d.write("a", "x")
	files, err := d.g.ListDir(within(d.T), "", d.dir, 2)
	d.must(err)
	var lines []string
	for _, f := range files {
		lines = append(lines, about(f))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func makeTwice(d desk) string {
	return failure(d.g.MakeDir(within(d.T), "", d.path("x/y"))) + ", " + failure(d.g.MakeDir(within(d.T), "", d.path("x/y"))) + ", " + d.stat("x/y")
}

func move(d desk) string {
	d.write("from", "x")
	return failure(d.g.Move(within(d.T), "", d.path("from"), d.path("new/to"))) + ", " + d.stat("from") + ", " + d.stat("new/to") +
		", " + failure(d.g.Move(within(d.T), "", d.path("from"), d.path("again")))
}

func removeTwice(d desk) string {
	d.write("t/u/v", "x")
	return failure(d.g.Remove(within(d.T), "", d.path("t"))) + ", " + failure(d.g.Remove(within(d.T), "", d.path("t"))) + ", " + d.stat("t")
}

func readDirectory(d desk) string { return d.read("", d.dir) + ", " + d.read("", "/dev/null") }

func readMissing(d desk) string { return d.read("", d.path("none")) + ", " + d.stat("none") }

func readForbidden(d desk) string {
	d.must(d.g.WriteFile(within(d.T), "", d.path("closed"), strings.NewReader("x"), sandpit.WriteOptions{Mode: 0o600}))
	err := d.g.WriteFile(within(d.T), "app", d.path("new"), strings.NewReader("x"), sandpit.WriteOptions{})
	return d.read("app", d.path("closed")) + ", " + failure(err)
}

func writeBelowFile(d desk) string {
	d.write("f", "x")
	return failure(d.g.WriteFile(within(d.T), "", d.path("f/g"), strings.NewReader("x"), sandpit.WriteOptions{}))
}

func carryTree(d desk) string {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, h := range []tar.Header{
		{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o750},
		{Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o640, Size: 4},
		{Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "f", Mode: 0o777},
	} {
		d.must(w.WriteHeader(&h))
		if h.Size > 0 {
			_, err := w.Write([]byte("text"))
			d.must(err)
		}
	}
	d.must(w.Close())
	d.must(d.g.WriteTree(within(d.T), "", d.path("in"), &packed))
	r, err := d.g.ReadTree(within(d.T), "", d.path("in"))
	d.must(err)
	defer r.Close()
	var members []string
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		d.must(err)
		members = append(members, fmt.Sprintf("%s %c %o %d %s", h.Name, h.Typeflag, h.Mode, h.Size, h.Linkname))
	}
	slices.Sort(members)
	return strings.Join(members, "\n")
}

func hostileTree(d desk) string {
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	d.must(w.WriteHeader(&tar.Header{Name: "../escaped", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1}))
	_, err := w.Write([]byte("x"))
	d.must(err)
	d.must(w.Close())
	return failure(d.g.WriteTree(within(d.T), "", d.path("in"), &packed)) + ", " + d.stat("escaped")
}

// watch tells what happens when a program makes, changes, renames and removes a file.
func watch(d desk) string {
	ctx, cancel := context.WithTimeout(d.Context(), long)
	defer cancel()
	w, err := d.g.Watch(ctx, "", d.dir, sandpit.WatchOptions{})
	d.must(err)
	defer w.Close()
	p, err := d.g.Start(ctx, sandpit.Command{Args: []string{"sh", "-c", "echo x > f; chmod 600 f; mv f g; rm g; mkdir last"}, Dir: d.dir})
	d.must(err)
	_, err = p.Wait(ctx)
	d.must(err)
	var lines []string
	for {
		e, err := w.Next(ctx)
		d.must(err)
		line := fmt.Sprint(e.Type, " ", e.Name)
		if len(lines) == 0 || lines[len(lines)-1] != line { // how often something is written is not said
			lines = append(lines, line)
		}
		if e.Name == "last" {
			return strings.Join(lines, "\n")
		}
	}
}
