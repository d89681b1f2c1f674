package providertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func snapshotChecks() []check {
	return []check{
		{"kept and removed", snapshotsKept},
		{"refused", snapshotsRefused},
		{"programs continue", snapshotPrograms},
		{"of a paused sandbox", snapshotPaused},
		{"followed across it", snapshotFollowed},
		{"roll back", rollback},
		{"roll back refused", rollbackRefused},
		{"files of a snapshot", snapshotLayer},
		{"export and import", exportAndImport},
		{"import refused", importRefused},
		{"suspend and resume", suspendAndResume},
		{"suspended ones are found again", resumeAfterCrash},
		{"suspend refused", suspendRefused},
		{"destroy while suspended", destroyWhileSuspended},
		{"bytes that are saved", savedBytes},
	}
}

// snapshotKeeper returns the provider as a SnapshotKeeper, or skips the check.
func snapshotKeeper(c *trial) sandpit.SnapshotKeeper {
	c.Helper()
	k, ok := c.provider.(sandpit.SnapshotKeeper)
	if !ok {
		c.Skip("this provider has no SnapshotKeeper")
	}
	return k
}

// takeSnapshot takes a snapshot of a sandbox, and removes it when the check ends.
func takeSnapshot(c *trial, box sandpit.Instance) sandpit.Snapshot {
	c.Helper()
	keeper := snapshotKeeper(c)
	saved, err := ability[sandpit.Snapshotter](c, box, "Snapshotter").Snapshot(c.ctx(), sandpit.NewSnapshotID())
	c.must(err, "save a snapshot")
	removeSnapshotAtEnd(c, keeper, saved.ID)
	return saved
}

func removeSnapshotAtEnd(c *trial, k sandpit.SnapshotKeeper, id sandpit.SnapshotID) {
	c.Cleanup(func() {
		ctx, cancel := c.cleanupContext()
		defer cancel()
		if err := k.RemoveSnapshot(ctx, id); err != nil {
			c.Errorf("remove snapshot %s at the end: %v", id, err)
		}
	})
}

// createFromSnapshot creates a sandbox from a snapshot.
func createFromSnapshot(c *trial, id sandpit.SnapshotID) sandpit.Instance {
	c.Helper()
	return c.createWith(c.provider, sandpit.Spec{Image: sandpit.SnapshotImage(id)})
}

// findSnapshot returns the entry of a snapshot in the list.
func findSnapshot(c *trial, k sandpit.SnapshotKeeper, id sandpit.SnapshotID) (sandpit.Snapshot, bool) {
	c.Helper()
	list, err := k.ListSnapshots(c.ctx())
	c.must(err, "list the snapshots")
	i := slices.IndexFunc(list, func(s sandpit.Snapshot) bool { return s.ID == id })
	if i < 0 {
		return sandpit.Snapshot{}, false
	}
	return list[i], true
}

func snapshotsKept(c *trial) {
	spec := c.Spec.Clone()
	spec.Env, spec.Labels = map[string]string{"SECRET": "x"}, map[string]string{"a": "b"}
	box := c.createWith(c.provider, spec)
	saved := takeSnapshot(c, box)
	keeper := snapshotKeeper(c)
	found, ok := findSnapshot(c, keeper, saved.ID)
	if !ok {
		c.Fatal("the snapshot is not listed")
	}
	if found.Sandbox != box.ID() || found.Spec.Env != nil || found.Spec.Labels["a"] != "b" || found.Memory != saved.Memory ||
		found.Size <= 0 || found.Unloadable != "" || !found.CreatedAt.Equal(saved.CreatedAt) {
		c.Errorf("listed: %+v, saved: %+v", found, saved)
	}
	_, err := ability[sandpit.Snapshotter](c, box, "Snapshotter").Snapshot(c.ctx(), saved.ID)
	c.wantCode(err, "save under an id that is in use", sandpit.AlreadyExists)
	c.must(box.Destroy(c.ctx()), "destroy what it was taken of")
	made := createFromSnapshot(c, saved.ID)
	for range 2 {
		c.must(keeper.RemoveSnapshot(c.ctx(), saved.ID), "remove the snapshot")
	}
	if _, ok := findSnapshot(c, keeper, saved.ID); ok {
		c.Error("it is listed after its removal")
	}
	_, err = c.provider.Create(c.ctx(), sandpit.NewID(), sandpit.Spec{Image: sandpit.SnapshotImage(saved.ID)})
	c.wantCode(err, "create from what is removed", sandpit.NotFound)
	_, err = keeper.ReadSnapshotLayer(c.ctx(), saved.ID)
	c.wantCode(err, "read what is removed", sandpit.NotFound)
	equal(c, "output of a copy", c.shellIn(made, "echo works"), "works\n")
}

func snapshotsRefused(c *trial) {
	box := c.newBox()
	snapshotter := ability[sandpit.Snapshotter](c, box, "Snapshotter")
	for _, id := range []sandpit.SnapshotID{"", "snap", "../snapaaaaaaaaaaaaaaaa"} {
		_, err := snapshotter.Snapshot(c.ctx(), id)
		c.wantCode(err, "save as "+string(id), sandpit.Invalid)
	}
	saved := takeSnapshot(c, box)
	for what, change := range map[string]func(*sandpit.Spec){
		"limits": func(s *sandpit.Spec) { s.Resources.PIDs = 77 },
		"mounts": func(s *sandpit.Spec) { s.Mounts = []sandpit.Mount{{Source: "/usr/share", Target: "/mnt"}} },
	} {
		spec := sandpit.Spec{Image: sandpit.SnapshotImage(saved.ID)}
		change(&spec)
		made, err := c.provider.Create(c.ctx(), sandpit.NewID(), spec)
		c.wantCode(err, "create with other "+what, sandpit.Invalid)
		if err == nil {
			c.destroyAtEnd(made)
		}
	}
	if stopper, ok := box.(sandpit.Stopper); ok {
		c.must(stopper.Stop(c.ctx()), "stop")
		_, err := snapshotter.Snapshot(c.ctx(), sandpit.NewSnapshotID())
		c.wantCode(err, "save a stopped sandbox", sandpit.Conflict)
	}
}

// counterScript counts in its memory, and prints the number on request.
const counterScript = `mkfifo ask answer; exec 3<>ask 4<>answer
n=0; while read x <&3; do n=$((n+1)); echo $n >&4; done`

const countScript = `echo >ask; read n <answer; echo $n`

// startCounter starts a program with state in memory.
func startCounter(c *trial, box sandpit.Instance) {
	c.Helper()
	p, err := box.Guest().Start(c.ctx(), shellCommand(counterScript))
	c.must(err, "start a counter")
	c.eventually("the counter counts", func() bool {
		return c.execIn(box, shellCommand("test -p answer")).status.Code == 0
	})
	equal(c, "the first number", c.shellIn(box, countScript), "1\n")
	_ = p // it runs until the sandbox ends
}

func snapshotPrograms(c *trial) {
	box := c.newBox()
	ability[sandpit.Snapshotter](c, box, "Snapshotter")
	startCounter(c, box)
	saved := takeSnapshot(c, box)
	if !saved.Memory {
		c.Skip("this provider's snapshots have no memory")
	}
	equal(c, "number of the original", c.shellIn(box, countScript), "2\n")
	for range 2 {
		equal(c, "number of a copy", c.shellIn(createFromSnapshot(c, saved.ID), countScript), "2\n")
	}
	equal(c, "number of the original", c.shellIn(box, countScript), "3\n")
}

func snapshotPaused(c *trial) {
	box := c.newBox()
	pauser := ability[sandpit.Pauser](c, box, "Pauser")
	ability[sandpit.Snapshotter](c, box, "Snapshotter")
	c.shellIn(box, "echo kept > file")
	c.must(pauser.Pause(c.ctx()), "pause")
	saved := takeSnapshot(c, box)
	c.wantCode(pauser.Pause(c.ctx()), "pause what must be paused still", sandpit.Conflict)
	equal(c, "file of a copy", c.shellIn(createFromSnapshot(c, saved.ID), "cat file"), "kept\n")
	c.must(pauser.Resume(c.ctx()), "resume")
	equal(c, "file", c.shellIn(box, "cat file"), "kept\n")
}

// snapshotFollowed follows a command from start to end while snapshots are taken.
func snapshotFollowed(c *trial) {
	box := c.newBox()
	ability[sandpit.Snapshotter](c, box, "Snapshotter")
	var out bytes.Buffer
	cmd := shellCommand(`echo begin; while ! test -e go; do sleep 0.02; done; seq 1 1000; exit 7`)
	cmd.Stdout = &out
	p := c.startIn(box, cmd)
	for range 2 {
		takeSnapshot(c, box)
	}
	c.shellIn(box, ": > go")
	equal(c, "exit code", c.wait(p).Code, 7)
	if text := out.String(); !strings.HasPrefix(text, "begin\n1\n") || !strings.HasSuffix(text, "\n1000\n") || strings.Count(text, "\n") != 1001 {
		c.Errorf("output: %d lines, %q", strings.Count(text, "\n"), clip(text))
	}
}

func rollback(c *trial) {
	spec := c.Spec.Clone()
	spec.Env = map[string]string{"KEPT": "yes"}
	box := c.createWith(c.provider, spec)
	rollbacker := ability[sandpit.Rollbacker](c, box, "Rollbacker")
	c.shellIn(box, "echo before > file")
	startCounter(c, box)
	saved := takeSnapshot(c, box)
	for range 2 {
		c.shellIn(box, "echo after > file; echo more > other")
		c.must(rollbacker.Rollback(c.ctx(), saved.ID), "roll back")
		equal(c, "files", c.shellIn(box, `cat file; test -e other || echo none; echo "$KEPT"`), "before\nnone\nyes\n")
		if saved.Memory {
			equal(c, "number", c.shellIn(box, countScript), "2\n")
		}
	}
	attached, err := c.provider.Attach(c.ctx(), box.Handle())
	c.must(err, "attach")
	equal(c, "file", c.shellIn(attached, "cat file"), "before\n")
	if pauser, ok := box.(sandpit.Pauser); ok {
		c.must(pauser.Pause(c.ctx()), "pause")
		c.must(rollbacker.Rollback(c.ctx(), saved.ID), "roll back what is paused")
		equal(c, "file", c.shellIn(box, "cat file"), "before\n")
	}
}

func rollbackRefused(c *trial) {
	box, other := c.newBox(), c.newBox()
	rollbacker := ability[sandpit.Rollbacker](c, box, "Rollbacker")
	c.shellIn(box, "echo now > file")
	c.wantCode(rollbacker.Rollback(c.ctx(), sandpit.NewSnapshotID()), "to a missing snapshot", sandpit.NotFound)
	c.wantCode(rollbacker.Rollback(c.ctx(), takeSnapshot(c, other).ID), "to another sandbox's", sandpit.Invalid)
	saved := takeSnapshot(c, box)
	equal(c, "file", c.shellIn(box, "cat file"), "now\n")
	if stopper, ok := box.(sandpit.Stopper); ok {
		c.must(stopper.Stop(c.ctx()), "stop")
		c.wantCode(rollbacker.Rollback(c.ctx(), saved.ID), "of what is stopped", sandpit.Conflict)
	}
	c.must(box.Destroy(c.ctx()), "destroy")
	c.wantCode(rollbacker.Rollback(c.ctx(), saved.ID), "of what is gone", sandpit.Gone)
}

func snapshotLayer(c *trial) {
	box := c.newBox()
	ability[sandpit.Snapshotter](c, box, "Snapshotter")
	c.shellIn(box, "echo in the layer > its-file")
	saved := takeSnapshot(c, box)
	r, err := snapshotKeeper(c).ReadSnapshotLayer(c.ctx(), saved.ID)
	if sandpit.CodeOf(err) == sandpit.Unsupported {
		c.Skip("this provider's snapshots cannot be read")
	}
	c.must(err, "read the layer")
	defer r.Close()
	found := ""
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		c.must(err, "read the layer")
		if path.Base(h.Name) == "its-file" {
			data, err := io.ReadAll(archive)
			c.must(err, "read the file")
			found = string(data)
		}
	}
	equal(c, "file in the layer", found, "in the layer\n")
}

// exportSnapshot returns an exported snapshot, or skips the check.
func exportSnapshot(c *trial, id sandpit.SnapshotID) []byte {
	c.Helper()
	var stream bytes.Buffer
	err := snapshotKeeper(c).ExportSnapshot(c.ctx(), id, &stream)
	if sandpit.CodeOf(err) == sandpit.Unsupported {
		c.Skipf("a snapshot of this image cannot be exported: %v", err)
	}
	c.must(err, "export")
	return stream.Bytes()
}

func exportAndImport(c *trial) {
	box := c.newBox()
	ability[sandpit.Snapshotter](c, box, "Snapshotter")
	c.shellIn(box, "echo far > file")
	saved := takeSnapshot(c, box)
	stream := exportSnapshot(c, saved.ID)
	keeper := snapshotKeeper(c)
	_, err := keeper.ImportSnapshot(c.ctx(), saved.ID, bytes.NewReader(stream))
	c.wantCode(err, "import under an id that is in use", sandpit.AlreadyExists)
	id := sandpit.NewSnapshotID()
	added, err := keeper.ImportSnapshot(c.ctx(), id, bytes.NewReader(stream))
	c.must(err, "import")
	removeSnapshotAtEnd(c, keeper, id)
	if found, ok := findSnapshot(c, keeper, id); !ok || added.ID != id || found.Sandbox != saved.Sandbox || added.Memory != saved.Memory {
		c.Errorf("imported: %+v, listed: %+v", added, found)
	}
	equal(c, "file", c.shellIn(createFromSnapshot(c, id), "cat file"), "far\n")
}

func importRefused(c *trial) {
	box := c.newBox()
	ability[sandpit.Snapshotter](c, box, "Snapshotter")
	stream := exportSnapshot(c, takeSnapshot(c, box).ID)
	keeper := snapshotKeeper(c)
	id := sandpit.NewSnapshotID()
	for what, hostile := range map[string][]byte{
		"nothing": nil, "nonsense": []byte("nonsense"), "the beginning": stream[:len(stream)/2],
		"all but the end": stream[:len(stream)-2048], "one byte changed": changed(stream),
	} {
		_, err := keeper.ImportSnapshot(c.ctx(), id, bytes.NewReader(hostile))
		c.wantCode(err, "import "+what, sandpit.Invalid)
		if _, ok := findSnapshot(c, keeper, id); ok {
			c.Errorf("%s is listed", what)
		}
	}
	_, err := keeper.ImportSnapshot(c.ctx(), "../"+id, bytes.NewReader(stream))
	c.wantCode(err, "import with an invalid id", sandpit.Invalid)
}

func changed(stream []byte) []byte {
	stream = bytes.Clone(stream)
	stream[len(stream)/2] ^= 1
	return stream
}

func suspendAndResume(c *trial) {
	box := c.newBox()
	suspender := ability[sandpit.Suspender](c, box, "Suspender")
	pauser := ability[sandpit.Pauser](c, box, "Pauser")
	startCounter(c, box)
	p, err := box.Guest().Start(c.ctx(), shellCommand("exec sleep 1000"))
	c.must(err, "start a process")
	for number, paused := range []bool{false, true} {
		if paused {
			c.must(pauser.Pause(c.ctx()), "pause")
		}
		c.must(suspender.Suspend(c.ctx()), "suspend")
		c.wantCode(suspender.Suspend(c.ctx()), "suspend what is suspended", sandpit.Conflict)
		c.wantCode(pauser.Pause(c.ctx()), "pause what is suspended", sandpit.Conflict)
		for _, call := range guestCalls() {
			c.wantCode(call.value(c.ctx(), box), call.name+" while suspended", sandpit.Conflict)
		}
		if _, ok := c.placement(c.provider, box.ID()); !ok {
			c.Error("a suspended sandbox is not listed")
		}
		ctx, cancel := context.WithTimeout(c.ctx(), 50*time.Millisecond)
		_, err = box.Wait(ctx)
		cancel()
		c.wantCode(err, "wait for the end of a suspended sandbox", sandpit.Timeout)

		c.must(pauser.Resume(c.ctx()), "resume")
		c.wantCode(pauser.Resume(c.ctx()), "resume what runs", sandpit.Conflict)
		equal(c, "number", c.shellIn(box, countScript), []string{"2\n", "3\n"}[number])
	}
	again, err := box.Guest().Connect(c.ctx(), p.PID(), sandpit.Streams{})
	c.must(err, "connect to what ran before")
	c.must(again.Signal(c.ctx(), sandpit.SIGKILL), "kill it")
	equal(c, "its exit code", c.wait(again).Code, 137)
}

// resumeAfterCrash has a second provider resume a sandbox that the first has suspended.
func resumeAfterCrash(c *trial) {
	spec := c.Spec.Clone()
	spec.Labels = map[string]string{"who": "the first"}
	spec.Env = map[string]string{"KEPT": "yes"}
	box := c.createWith(c.provider, spec)
	suspender := ability[sandpit.Suspender](c, box, "Suspender")
	startCounter(c, box)
	c.must(suspender.Suspend(c.ctx()), "suspend")
	second := c.reopen(c.provider)
	found, ok := c.placement(second, box.ID())
	if !ok {
		c.Fatal("the second provider does not list it")
	}
	equal(c, "label", found.Spec.Labels["who"], "the first")
	equal(c, "variables that are listed", len(found.Spec.Env), 0)
	_, err := second.Create(c.ctx(), box.ID(), spec)
	c.wantCode(err, "create with the id of a suspended one", sandpit.AlreadyExists)
	attached, err := second.Attach(c.ctx(), found.Handle)
	c.must(err, "attach")
	c.must(ability[sandpit.Pauser](c, attached, "Pauser").Resume(c.ctx()), "resume")
	for who, i := range map[string]sandpit.Instance{"the second": attached, "the first": box} {
		equal(c, "environment, for "+who, c.shellIn(i, `echo "$KEPT"`), "yes\n")
	}
	equal(c, "number", c.shellIn(box, countScript), "2\n")
}

func suspendRefused(c *trial) {
	box := c.newBox()
	suspender := ability[sandpit.Suspender](c, box, "Suspender")
	if stopper, ok := box.(sandpit.Stopper); ok {
		c.must(stopper.Stop(c.ctx()), "stop")
		c.wantCode(suspender.Suspend(c.ctx()), "suspend what is stopped", sandpit.Conflict)
		c.must(stopper.Start(c.ctx()), "start")
		c.must(suspender.Suspend(c.ctx()), "suspend")
		c.wantCode(stopper.Stop(c.ctx()), "stop what is suspended", sandpit.Conflict)
		c.wantCode(stopper.Start(c.ctx()), "start what is suspended", sandpit.Conflict)
	}
	c.must(box.Destroy(c.ctx()), "destroy")
	c.wantCode(suspender.Suspend(c.ctx()), "suspend what is gone", sandpit.Gone)
}

func destroyWhileSuspended(c *trial) {
	box := c.newBox()
	suspender := ability[sandpit.Suspender](c, box, "Suspender")
	c.must(suspender.Suspend(c.ctx()), "suspend")
	c.must(box.Destroy(c.ctx()), "destroy")
	c.wantCode(ability[sandpit.Pauser](c, box, "Pauser").Resume(c.ctx()), "resume what is gone", sandpit.Gone)
	if _, ok := c.placement(c.provider, box.ID()); ok {
		c.Error("it is listed after destroy")
	}
}

// savedBytes has every way to save a sandbox refused for its size, and then allowed.
func savedBytes(c *trial) {
	box := c.newBox()
	estimator := ability[sandpit.SaveEstimator](c, box, "SaveEstimator")
	stopper := ability[sandpit.Stopper](c, box, "Stopper")
	suspender := ability[sandpit.Suspender](c, box, "Suspender")
	checkpointer := ability[sandpit.Checkpointer](c, box, "Checkpointer")
	const size = 3 << 20
	c.shellIn(box, "head -c 3145728 /dev/urandom > kept")
	for _, memory := range []bool{false, true} {
		if bytes, err := estimator.EstimateSave(c.ctx(), memory); err != nil || bytes < size {
			c.Errorf("estimate with memory %t: %d bytes, %v; want at least %d", memory, bytes, err, size)
		}
	}
	refused := sandpit.WithAdmit(c.ctx(), func(bytes int64) error {
		return sandpit.Errorf(sandpit.Exhausted, "%d bytes are too many", bytes)
	})
	var asked int64
	admitted := sandpit.WithAdmit(c.ctx(), func(bytes int64) error {
		asked = bytes
		return nil
	})
	for _, op := range []struct {
		name string
		save func(context.Context) error
		undo func(context.Context) error
	}{
		{"checkpoint", checkpointer.Checkpoint, nil},
		{"suspend", suspender.Suspend, ability[sandpit.Pauser](c, box, "Pauser").Resume},
		{"stop", stopper.Stop, stopper.Start},
	} {
		c.wantCode(op.save(refused), op.name+" what is too large", sandpit.Exhausted)
		equal(c, "a file after "+op.name, strings.TrimSpace(c.shellIn(box, "wc -c < kept")), strconv.Itoa(size))
		placed, _ := c.placement(c.provider, box.ID())
		if placed.SavedBytes != 0 {
			c.Errorf("%s was refused, and %d bytes are listed as saved", op.name, placed.SavedBytes)
		}
		asked = 0
		c.must(op.save(admitted), op.name)
		placed, _ = c.placement(c.provider, box.ID())
		listed := placed.SavedBytes
		if op.undo == nil {
			listed = placed.CheckpointBytes
		}
		if asked < size || listed < size {
			c.Errorf("%s: %d bytes were asked for and %d are listed, want at least %d", op.name, asked, listed, size)
		}
		if op.undo != nil {
			c.must(op.undo(c.ctx()), "undo "+op.name)
		}
	}
	placed, _ := c.placement(c.provider, box.ID())
	equal(c, "bytes of a running sandbox", placed.SavedBytes, 0)
}
