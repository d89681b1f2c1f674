package providertest

import (
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

func volumeChecks() []check {
	return []check{
		{"several sandboxes", volumeShared},
		{"made once", volumeOnce},
		{"one of two wins", volumeExclusive},
		{"read only", volumeReadOnly},
		{"subpath", volumeSubpath},
		{"subpath outside", volumeSubpathOutside},
		{"stays", volumeStays},
		{"while it is had", volumeInUse},
		{"not there", volumeMissing},
		{"names", volumeNames},
		{"size", volumeSize},
	}
}

// volumeKeeper returns the provider as a VolumeKeeper, or skips the check.
func volumeKeeper(c *trial) sandpit.VolumeKeeper {
	c.Helper()
	keeper, ok := sandpit.As[sandpit.VolumeKeeper](c.provider)
	if !ok {
		c.Skip("this provider has no VolumeKeeper")
	}
	if !c.Isolated {
		c.Skip("sandboxes have no files of their own, which a volume could be shown among")
	}
	return keeper
}

// createVolume creates a volume, and removes it when the check and its sandboxes have ended.
func createVolume(c *trial, keeper sandpit.VolumeKeeper) string {
	c.Helper()
	name := "Test_" + string(sandpit.NewID()) + ".1-x"
	c.must(keeper.CreateVolume(c.ctx(), name), "create a volume")
	c.Cleanup(func() {
		ctx, cancel := c.cleanupContext()
		defer cancel()
		if err := keeper.RemoveVolume(ctx, name); err != nil {
			c.Errorf("remove the volume at the end: %v", err)
		}
	})
	return name
}

// specWithVolume returns a spec with a volume at /shared.
func specWithVolume(c *trial, name string, readOnly bool) sandpit.Spec {
	spec := c.Spec.Clone()
	spec.Mounts = append(spec.Mounts, sandpit.Mount{Volume: name, Target: "/shared", ReadOnly: readOnly})
	return spec
}

// volumeShared checks that two sandboxes see each other's changes at once.
func volumeShared(c *trial) {
	name := createVolume(c, volumeKeeper(c))
	a, b := c.createWith(c.provider, specWithVolume(c, name, false)), c.createWith(c.provider, specWithVolume(c, name, false))
	equal(c, "a new volume", c.shellIn(a, "ls -A /shared"), "")
	c.shellIn(a, "cd /shared; mkdir -p dir/sub; echo one > dir/sub/f; echo old > replaced; echo x > gone; ln -s dir link; chmod 640 dir/sub/f")
	equal(c, "seen by the other", c.shellIn(b, "cd /shared; cat link/sub/f replaced; stat -c %a dir/sub/f; ls"), "one\nold\n640\ndir\ngone\nlink\nreplaced\n")
	c.shellIn(b, "cd /shared; echo two >> dir/sub/f; echo newer > n; mv n replaced; rm gone; mkdir later; mv dir moved")
	equal(c, "seen by the first", c.shellIn(a, "cd /shared; cat moved/sub/f replaced; ls"), "one\ntwo\nnewer\nlater\nlink\nmoved\nreplaced\n")
	// A file that is open in one sandbox and grows in the other.
	c.shellIn(b, ": > /shared/log")
	const lines = 5
	for i := range lines {
		n := strconv.Itoa(i)
		c.shellIn(a, "echo "+n+" >> /shared/log")
		equal(c, "the last line", c.shellIn(b, "tail -n 1 /shared/log"), n+"\n")
	}
	equal(c, "all lines", c.shellIn(b, "wc -l < /shared/log"), strconv.Itoa(lines)+"\n")
}

func volumeOnce(c *trial) {
	keeper := volumeKeeper(c)
	name := createVolume(c, keeper)
	box := c.createWith(c.provider, specWithVolume(c, name, false))
	c.shellIn(box, "echo kept > /shared/f")
	c.must(keeper.CreateVolume(c.ctx(), name), "create a volume again")
	equal(c, "file", c.shellIn(box, "cat /shared/f"), "kept\n")
}

// volumeExclusive has sandboxes do concurrently what only one can do: programs in several sandboxes
// coordinate that way.
func volumeExclusive(c *trial) {
	name := createVolume(c, volumeKeeper(c))
	const boxes, places = 3, 50
	won := make([]string, boxes)
	var group sync.WaitGroup
	for i := range boxes {
		box := c.createWith(c.provider, specWithVolume(c, name, false))
		group.Go(func() {
			won[i] = c.shellIn(box, `cd /shared; i=0; while [ $i -lt $1 ]; do mkdir p$i 2>/dev/null && echo $i; i=$((i+1)); done; :`, strconv.Itoa(places))
		})
	}
	group.Wait()
	total := 0
	for _, text := range won {
		total += len(strings.Fields(text))
	}
	equal(c, "directories made, each once", total, places)
}

func volumeReadOnly(c *trial) {
	name := createVolume(c, volumeKeeper(c))
	writer, reader := c.createWith(c.provider, specWithVolume(c, name, false)), c.createWith(c.provider, specWithVolume(c, name, true))
	c.shellIn(writer, "echo first > /shared/f")
	equal(c, "file", c.shellIn(reader, "cat /shared/f"), "first\n")
	for _, script := range []string{
		"echo x > /shared/f", "echo x > /shared/new", "rm /shared/f", "mkdir /shared/d", "mv /shared/f /shared/g", "chmod 777 /shared/f", "ln -s x /shared/l",
	} {
		if r := c.execIn(reader, shellCommand(script)); r.status.Code == 0 {
			c.Errorf("a volume that is read only: %q works", script)
		}
	}
	c.shellIn(writer, "echo second > /shared/f")
	equal(c, "file", c.shellIn(reader, "cat /shared/f; ls /shared"), "second\nf\n")
}

// volumeStays checks that a volume outlives its sandbox and its provider.
func volumeStays(c *trial) {
	name := createVolume(c, volumeKeeper(c))
	box := c.createWith(c.provider, specWithVolume(c, name, false))
	c.shellIn(box, "echo kept > /shared/f; chmod 000 /shared/f")
	c.must(box.Destroy(c.ctx()), "destroy")
	p := c.provider
	if c.Reopen != nil {
		p = c.Reopen(c.T, p)
	}
	again := c.createWith(p, specWithVolume(c, name, false))
	equal(c, "file", c.shellIn(again, "chmod 600 /shared/f; cat /shared/f"), "kept\n")
}

func volumeInUse(c *trial) {
	keeper := volumeKeeper(c)
	name := createVolume(c, keeper)
	box := c.createWith(c.provider, specWithVolume(c, name, true))
	c.wantCode(keeper.RemoveVolume(c.ctx(), name), "remove a volume that a sandbox has", sandpit.Conflict)
	if suspender, ok := box.(sandpit.Suspender); ok {
		c.must(suspender.Suspend(c.ctx()), "suspend")
		c.wantCode(keeper.RemoveVolume(c.ctx(), name), "remove a volume that a suspended sandbox has", sandpit.Conflict)
		c.must(ability[sandpit.Pauser](c, box, "Pauser").Resume(c.ctx()), "resume")
	}
	if stopper, ok := box.(sandpit.Stopper); ok {
		c.must(stopper.Stop(c.ctx()), "stop")
		c.wantCode(keeper.RemoveVolume(c.ctx(), name), "remove a volume that a stopped sandbox has", sandpit.Conflict)
		removeWhileArchived(c, keeper, box, name)
		c.must(stopper.Start(c.ctx()), "start")
		c.shellIn(box, "ls /shared")
	}
	c.must(box.Destroy(c.ctx()), "destroy")
	c.must(keeper.RemoveVolume(c.ctx(), name), "remove it")
	c.must(keeper.RemoveVolume(c.ctx(), name), "remove it again")
	c.must(keeper.CreateVolume(c.ctx(), name), "make it again")
	fresh := c.createWith(c.provider, specWithVolume(c, name, false))
	equal(c, "a volume that was made again", c.shellIn(fresh, "ls -A /shared"), "")
}

// removeWhileArchived checks that the volume of an archived sandbox stays, if the provider has an
// archive. The sandbox is stopped before and after.
func removeWhileArchived(c *trial, keeper sandpit.VolumeKeeper, box sandpit.Instance, name string) {
	c.Helper()
	archiver, ok := box.(sandpit.Archiver)
	if !ok {
		return
	}
	err := archiver.Archive(c.ctx())
	if errors.Is(err, sandpit.Unsupported) {
		return
	}
	c.must(err, "archive")
	c.wantCode(keeper.RemoveVolume(c.ctx(), name), "remove a volume that an archived sandbox has", sandpit.Conflict)
	c.must(archiver.Restore(c.ctx()), "restore")
}

func volumeMissing(c *trial) {
	keeper := volumeKeeper(c)
	before, err := c.provider.List(c.ctx())
	c.must(err, "list")
	name := "none-" + string(sandpit.NewID())
	id := sandpit.NewID()
	_, err = c.provider.Create(c.ctx(), id, specWithVolume(c, name, false))
	c.wantCode(err, "create with a missing volume", sandpit.NotFound)
	if _, ok := c.placement(c.provider, id); ok {
		c.Errorf("a sandbox that could not be made is listed; before: %d", len(before))
	}
	_, err = keeper.VolumeSize(c.ctx(), name)
	c.wantCode(err, "size of a missing volume", sandpit.NotFound)
	c.must(keeper.RemoveVolume(c.ctx(), name), "remove a missing volume")
	_, err = c.provider.Create(c.ctx(), sandpit.NewID(), specWithVolume(c, name, false)) // none was created on the way
	c.wantCode(err, "create again with a missing volume", sandpit.NotFound)
}

func volumeNames(c *trial) {
	keeper := volumeKeeper(c)
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/tmp", ".hidden", "-x", "a b", "a\x00", strings.Repeat("x", 64)} {
		_, sizeErr := keeper.VolumeSize(c.ctx(), name)
		for doing, err := range map[string]error{
			"create": keeper.CreateVolume(c.ctx(), name), "remove": keeper.RemoveVolume(c.ctx(), name), "measure": sizeErr,
		} {
			c.wantCode(err, doing+" volume "+strconv.Quote(name), sandpit.Invalid)
		}
		if name == "" {
			continue // a mount without one has a source
		}
		_, err := c.provider.Create(c.ctx(), sandpit.NewID(), specWithVolume(c, name, false))
		c.wantCode(err, "create with volume "+strconv.Quote(name), sandpit.Invalid)
	}
	spec := specWithVolume(c, "a", false)
	spec.Mounts[len(spec.Mounts)-1].Source = "/tmp"
	_, err := c.provider.Create(c.ctx(), sandpit.NewID(), spec)
	c.wantCode(err, "create with a source and a volume in one mount", sandpit.Invalid)
}

func volumeSize(c *trial) {
	keeper := volumeKeeper(c)
	name := createVolume(c, keeper)
	empty, err := keeper.VolumeSize(c.ctx(), name)
	if errors.Is(err, sandpit.Unsupported) {
		c.Skipf("this provider cannot count: %v", err)
	}
	c.must(err, "size")
	box := c.createWith(c.provider, specWithVolume(c, name, false))
	const bytes = 3 << 20
	c.shellIn(box, `mkdir /shared/d; head -c $1 /dev/zero | tr '\0' x > /shared/d/f; sync`, strconv.Itoa(bytes))
	full, err := keeper.VolumeSize(c.ctx(), name)
	c.must(err, "size")
	if grown := full - empty; grown < bytes || grown > bytes+1<<20 {
		c.Errorf("it is %d bytes larger with a file of %d", grown, bytes)
	}
}

// specWithDir returns a spec with a directory of a volume at /shared.
func specWithDir(c *trial, name, subpath string) sandpit.Spec {
	spec := specWithVolume(c, name, false)
	spec.Mounts[len(spec.Mounts)-1].Subpath = subpath
	return spec
}

// createWithDir creates a sandbox that sees a directory of a volume, or skips the check.
func createWithDir(c *trial, name, subpath string) sandpit.Instance {
	c.Helper()
	box, err := c.provider.Create(c.ctx(), sandpit.NewID(), specWithDir(c, name, subpath))
	if sandpit.CodeOf(err) == sandpit.Unsupported {
		c.Skip("this provider cannot mount a directory of a volume")
	}
	c.must(err, "create a sandbox with a directory of a volume")
	c.destroyAtEnd(box)
	return box
}

// volumeSubpath shows a directory of a volume, which is created, and nothing else of it.
func volumeSubpath(c *trial) {
	name := createVolume(c, volumeKeeper(c))
	part := createWithDir(c, name, "deep/new")
	all := c.createWith(c.provider, specWithVolume(c, name, false))
	c.shellIn(all, "echo secret > /shared/deep/outside; echo seen > /shared/deep/new/f")
	equal(c, "seen in the directory", c.shellIn(part, "ls -A /shared; cat /shared/f; ls /shared/.. | grep -c outside; cat /shared/../outside 2>/dev/null; true"), "f\nseen\n0\n")
	c.shellIn(part, "echo from the part > /shared/back")
	equal(c, "seen in the volume", c.shellIn(all, "cat /shared/deep/new/back"), "from the part\n")
	for _, subpath := range []string{"..", "../x", "a/../../x", "/etc", "a//b", ".", "./a", "a/", "a\x00b", strings.Repeat("a/", 600) + "a"} {
		_, err := c.provider.Create(c.ctx(), sandpit.NewID(), specWithDir(c, name, subpath))
		c.wantCode(err, "subpath "+strconv.Quote(subpath), sandpit.Invalid)
	}
	source := c.Spec.Clone()
	source.Mounts = []sandpit.Mount{{Source: "/tmp", Target: "/shared", Subpath: "a"}}
	_, err := c.provider.Create(c.ctx(), sandpit.NewID(), source)
	c.wantCode(err, "subpath without a volume", sandpit.Invalid)
}

// volumeSubpathOutside has a sandbox make links in a volume that lead outside, which another sandbox
// would be given.
func volumeSubpathOutside(c *trial) {
	name := createVolume(c, volumeKeeper(c))
	box := createWithDir(c, name, "good/dir")
	all := c.createWith(c.provider, specWithVolume(c, name, false))
	c.shellIn(all, "cd /shared; ln -s / root; ln -s ../../.. up; ln -s good inside; ln -s /etc good/etc; echo x > file")
	for _, subpath := range []string{"root", "root/etc", "up", "up/etc", "inside", "inside/dir", "good/etc"} {
		_, err := c.provider.Create(c.ctx(), sandpit.NewID(), specWithDir(c, name, subpath))
		c.wantCode(err, "a subpath through the link "+subpath, sandpit.PermissionDenied)
	}
	for _, subpath := range []string{"file", "file/dir"} {
		_, err := c.provider.Create(c.ctx(), sandpit.NewID(), specWithDir(c, name, subpath))
		c.wantCode(err, "a subpath that is a file", sandpit.Conflict)
	}
	stopper, ok := sandpit.As[sandpit.Stopper](box)
	if !ok {
		return
	}
	c.must(stopper.Stop(c.ctx()), "stop")
	c.shellIn(all, "cd /shared; mv good/dir good/kept; ln -s /etc good/dir")
	c.wantCode(stopper.Start(c.ctx()), "start with a directory that became a link", sandpit.PermissionDenied)
	c.shellIn(all, "cd /shared; rm good/dir; mv good/kept good/dir; echo again > good/dir/f")
	c.must(stopper.Start(c.ctx()), "start")
	equal(c, "the file", c.shellIn(box, "cat /shared/f"), "again\n")
}
