package providertest

import (
	"context"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// patternScript writes $1 bytes of a pattern in which each byte depends on its offset.
const (
	patternScript = `yes 0123456789abcde | head -c "$1"`
	pattern       = "0123456789abcde\n"
)

// patternWriter checks that output is the pattern at the reported offsets.
type patternWriter struct {
	at, bytes, missing int64
	wrong              bool
}

func (p *patternWriter) Write(b []byte) (int, error) {
	for i, char := range b {
		p.wrong = p.wrong || char != pattern[(p.at+int64(i))%int64(len(pattern))]
	}
	p.at += int64(len(b))
	p.bytes += int64(len(b))
	return len(b), nil
}

func (p *patternWriter) skip(_ bool, offset, n int64) {
	p.wrong = p.wrong || offset != p.at
	p.at += n
	p.missing += n
}

// expectComplete fails unless all bytes of the output arrived or were reported as missing.
func (p *patternWriter) expectComplete(c *trial, followed sandpit.Followed, size int64) {
	c.Helper()
	if p.wrong {
		c.Error("the output differs, or has other offsets")
	}
	equal(c, "received and missing bytes", p.bytes+p.missing, size)
	equal(c, "missing bytes", followed.Missing, sandpit.Offsets{Stdout: p.missing})
	equal(c, "reported size", followed.Command.Stdout.Size, size)
	equal(c, "status", followed.Command.Status, sandpit.ExitStatus{})
}

// followPattern follows a command with the pattern to its end.
func followPattern(ctx context.Context, j sandpit.Journal, id string, out *patternWriter) (sandpit.Followed, error) {
	return j.Follow(ctx, id, sandpit.FollowOptions{Stdout: out, Missing: out.skip})
}

// readersIndependent has the starter of a command and one follower read nothing, while another
// follower reads everything.
func readersIndependent(c *trial) {
	const size = 4 << 20 // more than buffers can hold
	j, ctx := c.journal(), c.long()
	blockedR, blockedW := io.Pipe()
	cmd := shellCommand(patternScript, strconv.Itoa(size))
	cmd.ID, cmd.Stdout = newCommandID(), blockedW
	p := c.start(cmd)
	slowR, slowW := io.Pipe()
	var slow, started, quick patternWriter
	var slowTold sandpit.Followed
	var slowErr error
	var reading sync.WaitGroup
	reading.Go(func() {
		slowTold, slowErr = j.Follow(ctx, cmd.ID, sandpit.FollowOptions{Stdout: slowW, Missing: slow.skip})
		_ = slowW.Close() // never fails
	})
	followed, err := followPattern(ctx, j, cmd.ID, &quick)
	c.must(err, "follow")
	quick.expectComplete(c, followed, size)
	equal(c, "what is missing", followed.Missing, sandpit.Offsets{})

	reading.Go(func() { _, _ = io.Copy(&slow, slowR) })       // neither side fails
	reading.Go(func() { _, _ = io.Copy(&started, blockedR) }) // the same
	status, err := p.Wait(ctx)
	_ = blockedW.Close() // never fails
	c.must(err, "wait")
	equal(c, "status", status, sandpit.ExitStatus{})
	c.promptly("the slow readers", reading.Wait)
	c.must(slowErr, "follow slowly")
	slow.expectComplete(c, slowTold, size)
	if started.wrong || started.bytes != size {
		c.Errorf("the starter received %d bytes, want %d", started.bytes, size)
	}
}

// droppedReported writes more than the log keeps, without a follower.
func droppedReported(c *trial) {
	const size = 72 << 20
	j, ctx := c.journal(), c.long()
	id := launchUnfollowed(c, c.box, shellCommand(patternScript, strconv.Itoa(size)))
	awaitCommandEnd(ctx, c, j, id)
	var out patternWriter
	followed, err := followPattern(ctx, j, id, &out)
	c.must(err, "follow after the end")
	out.expectComplete(c, followed, size)
	info, err := j.GetCommand(ctx, id)
	c.must(err, "get the command")
	equal(c, "reported as dropped", info.Stdout, sandpit.Journaled{Size: size, Dropped: out.missing})
	if out.missing == 0 || out.bytes == 0 {
		c.Errorf("%d bytes are missing of %d", out.missing, size)
	}
	c.must(j.ForgetCommand(ctx, id), "forget")
}

// launchUnfollowed starts a command and disconnects.
func launchUnfollowed(c *trial, box sandpit.Instance, cmd sandpit.Command) (id string) {
	c.Helper()
	cmd.ID = newCommandID()
	ctx, goAway := context.WithCancel(c.ctx())
	defer goAway()
	p, err := box.Guest().Start(ctx, cmd)
	c.must(err, "start")
	c.killAtEnd(p)
	return cmd.ID
}

// awaitCommandEnd waits for the end of a command without a follower.
func awaitCommandEnd(ctx context.Context, c *trial, j sandpit.Journal, id string) {
	c.Helper()
	for {
		info, err := j.GetCommand(ctx, id)
		c.must(err, "get the command")
		if info.Ended {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// journalDiskFull has a command write much output while the disk is full.
func journalDiskFull(c *trial) {
	if !c.Isolated {
		c.Skip("this provider's sandboxes have no disk of their own")
	}
	const size = 16 << 20
	spec := c.Spec.Clone()
	spec.Resources.Disk = 32 << 20
	box, err := c.provider.Create(c.long(), sandpit.NewID(), spec)
	if sandpit.CodeOf(err) == sandpit.Unsupported {
		c.Skipf("this provider cannot limit the disk: %v", err)
	}
	c.must(err, "create a sandbox with a small disk")
	c.destroyAtEnd(box)
	j, ctx := journalOf(c, box), c.long()
	r := c.execIn(box, shellCommand("head -c 268435456 /dev/zero > /fill"))
	if r.stderr == "" {
		c.Fatalf("the disk is not full: %+v", r)
	}
	id := launchUnfollowed(c, box, shellCommand(patternScript, strconv.Itoa(size)))
	awaitCommandEnd(ctx, c, j, id)
	var out patternWriter
	followed, err := followPattern(ctx, j, id, &out)
	c.must(err, "follow")
	out.expectComplete(c, followed, size)
	if out.missing == 0 || out.bytes == 0 {
		c.Errorf("%d bytes are missing of %d", out.missing, size)
	}
	equal(c, "output of the next command", c.shellIn(box, "echo works"), "works\n")
}

// followGone follows a command whose sandbox ends.
func followGone(c *trial) {
	box := c.newBox()
	j := journalOf(c, box)
	p := c.startIn(box, shellCommand("echo begun; sleep 1000"))
	r, w := io.Pipe()
	var err error
	var following sync.WaitGroup
	ctx := c.long()
	following.Go(func() {
		_, err = j.Follow(ctx, p.ID(), sandpit.FollowOptions{Stdout: w})
		_ = w.CloseWithError(err) // never fails
	})
	_, readErr := io.ReadFull(r, make([]byte, len("begun\n")))
	c.must(readErr, "read what it says")
	c.must(box.Destroy(c.ctx()), "destroy")
	c.promptly("the follower", following.Wait)
	c.wantCode(err, "follow while the sandbox ends", sandpit.Gone)
	_, err = j.GetCommand(c.ctx(), p.ID())
	c.wantCode(err, "get a command of what is gone", sandpit.Gone)
}
