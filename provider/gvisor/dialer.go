package gvisor

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/dialer"
	"github.com/sandpit-dev/sandpit/internal/reach/network/route"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/confine"
)

// dialerControlFD is the descriptor that a dialer is started with: the connection to the reaper.
const dialerControlFD = 3

// dialerGCPercent has the runtime collect garbage often: little of the memory is in use.
const dialerGCPercent = 25

// dialerBounds returns what a dialer may use, which has one socket for each gateway of its
// engine.
func dialerBounds() confine.Bounds {
	return confine.Bounds{Memory: 256 << 20, MemoryGoal: 64 << 20, Files: 1 << 20}
}

// dialerOrder sets what a dialer knows of one gateway. A file beside it is the dialer's end of
// that gateway's socket, which it serves from then on.
type dialerOrder struct {
	ID sandpit.ID `json:"id"`
	// Grant replaces that of the gateway. Nil: the gateway has ended.
	Grant *dialer.Grant `json:"grant,omitempty"`
}

// dialerReply confirms an order.
type dialerReply struct {
	Error *replyError `json:"error,omitempty"`
}

// dialerMain is the main function of the process that opens the connections of all gateways of an
// engine: see package dialer. It has the machine's network and nothing else, and ends with the
// reaper.
func dialerMain() int {
	unix.CloseOnExec(dialerControlFD)
	debug.SetGCPercent(dialerGCPercent)
	control, err := unixConn(os.NewFile(dialerControlFD, "control"))
	if err != nil {
		return 1
	}
	kernel, err := route.Open()
	if err != nil {
		return 1
	}
	if err := confine.Dialer(dialerBounds()); err != nil {
		_ = writePacket(control, dialerReply{Error: newReplyError(err)})
		return 1
	}
	if err := writePacket(control, dialerReply{}); err != nil { // it is ready
		return 1
	}
	d := dialerServers{kernel: kernel, servers: make(map[sandpit.ID]*dialerServer)}
	for {
		var order dialerOrder
		files, err := readPacket(control, &order)
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
			return 0
		}
		if err == nil {
			err = d.applyOrder(order, files)
		}
		closeAll(files)
		if err := writePacket(control, dialerReply{Error: newReplyError(err)}); err != nil {
			return 1
		}
	}
}

// dialerServers are the servers of all gateways. Only dialerMain uses them.
type dialerServers struct {
	kernel  *route.Kernel
	servers map[sandpit.ID]*dialerServer
}

type dialerServer struct {
	*dialer.Server

	stop context.CancelFunc
}

// applyOrder carries out an order. The caller closes the files.
func (d *dialerServers) applyOrder(o dialerOrder, files []*os.File) error {
	old := d.servers[o.ID]
	if old != nil && o.Grant != nil && len(files) == 0 {
		old.SetGrant(*o.Grant)
		return nil
	}
	if old != nil {
		old.stop()
		delete(d.servers, o.ID)
	}
	if o.Grant == nil {
		return nil
	}
	if len(files) != 1 {
		return sandpit.Errorf(sandpit.Invalid, "serve gateway %s: the socket is missing", o.ID)
	}
	end, err := duplicateFile(files[0])
	if err != nil {
		return err
	}
	conn, err := unixConn(end)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &dialerServer{dialer.NewServer(conn, d.kernel, *o.Grant), cancel}
	d.servers[o.ID] = s
	go func() { _ = s.Serve(ctx) }() // ends with stop, or with the process
	return nil
}
