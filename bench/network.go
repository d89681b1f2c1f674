package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// netPackage is the program that uses the network from inside.
const netPackage = "github.com/sandpit-dev/sandpit/provider/gvisor/testdata/netclient"

// The network traffic of one sample.
const (
	netConnections = 200
	netBytes       = 256 << 20
	netInside      = "/tmp/netclient"
)

// network measures traffic between boxes and a server of this machine, which they reach like any
// other server.
func (k *kit) network(ctx context.Context, p *gvisor.Provider) (err error) {
	if !k.o.wants(nameNetwork) {
		return nil
	}
	connections, size := netConnections, int64(netBytes)
	if k.o.quick {
		connections, size = 8, 1<<20
	}
	client := filepath.Join(k.dir, "netclient")
	if err := k.buildStatic(ctx, netPackage, client); err != nil {
		return err
	}
	server, stop, err := serveNet(ctx, size)
	if err != nil {
		k.report.skip("network", err.Error())
		return nil
	}
	defer stop()
	users, clean, err := k.netUsers(ctx, p, server, client)
	defer func() { err = errors.Join(err, clean(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	s := series{kit: k, n: k.o.samples(7), metrics: []metric{{metricConnect, unitMS}, {metricReceive, unitMBps}, {metricSend, unitMBps}}}
	for name, use := range users {
		s.add(name, func() (sample []float64, err error) {
			for _, args := range [][2]string{{"one", strconv.Itoa(connections)}, {"down", strconv.FormatInt(size, 10)}, {"up", strconv.FormatInt(size, 10)}} {
				figure, err := use(ctx, args[0], server.String(), args[1])
				if err != nil {
					return nil, err
				}
				sample = append(sample, figure)
			}
			return sample, nil
		})
	}
	return s.run(ctx)
}

// netUser runs the client somewhere and returns the figure that it prints.
type netUser func(ctx context.Context, args ...string) (float64, error)

// speaker is a box that returns the output of a program.
type speaker interface {
	Output(ctx context.Context, args ...string) (string, error)
}

// netUsers are the users of the network, and how to remove them.
func (k *kit) netUsers(ctx context.Context, p *gvisor.Provider, server netip.AddrPort, client string) (map[string]netUser, func(context.Context) error, error) {
	users := map[string]netUser{byHost: func(ctx context.Context, args ...string) (float64, error) {
		out, err := exec.CommandContext(ctx, client, args...).Output()
		return figureOf(string(out), err)
	}}
	var boxes []box
	clean := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
		defer cancel()
		var errs []error
		for _, b := range boxes {
			errs = append(errs, b.Destroy(ctx))
		}
		return errors.Join(errs...)
	}
	enter := func(name string, b interface {
		box
		speaker
	},
	) error {
		boxes = append(boxes, b)
		users[name] = func(ctx context.Context, args ...string) (float64, error) {
			return figureOf(b.Output(ctx, append([]string{netInside}, args...)...))
		}
		return b.CopyIn(ctx, client, netInside)
	}
	online, err := startOnline(ctx, p, k.root.path, server)
	if err == nil {
		err = enter(bySandpit, online)
	}
	if err != nil || k.docker == nil {
		return users, clean, err
	}
	id, err := dockerOutput(ctx, "run", "-d", "--network", "bridge", "--label", k.docker.label, k.docker.image, "sleep", "86400")
	if err != nil {
		k.report.skip("network, "+byDocker, "no bridge: "+err.Error())
		return users, clean, nil //nolint:nilerr // the report says so
	}
	return users, clean, enter(byDocker, &dockerBox{id: id})
}

// figureOf reads the number at the beginning of what a client printed.
func figureOf(out string, err error) (float64, error) {
	if err != nil {
		return 0, err
	}
	number, _, _ := strings.Cut(strings.TrimSpace(out), " ")
	return strconv.ParseFloat(number, 64)
}

func startOnline(ctx context.Context, p *gvisor.Provider, root string, server netip.AddrPort) (*sandpitBox, error) {
	inst, err := p.Create(ctx, sandpit.NewID(), sandpit.Spec{
		Image: sandpit.Image(root), Network: sandpit.NetworkPolicy{Online: true, Allow: []string{server.String()}, Inside: []string{server.String()}},
	})
	if err != nil {
		return nil, withHint(err)
	}
	w, err := workspace.New(inst.Guest(), workspace.Options{})
	if err != nil {
		return nil, errors.Join(err, inst.Destroy(ctx))
	}
	return &sandpitBox{inst: inst, w: w}, nil
}

// serveNet starts a server on an address of this machine other than loopback. The first byte selects
// what it does: echo it, send size bytes, or read everything and then answer.
func serveNet(ctx context.Context, size int64) (netip.AddrPort, func(), error) {
	host, err := outerAddr()
	if err != nil {
		return netip.AddrPort{}, nil, err
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", netip.AddrPortFrom(host, 0).String())
	if err != nil {
		return netip.AddrPort{}, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return // closed
			}
			tasks.Go(func() {
				defer conn.Close()
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				answerNet(conn, size)
			})
		}
	})
	stop := func() {
		cancel()
		_ = ln.Close()
		tasks.Wait()
	}
	return netip.MustParseAddrPort(ln.Addr().String()), stop, nil
}

// answerNet serves one connection. The client reports its own failures.
func answerNet(conn net.Conn, size int64) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(conn, first); err != nil {
		return
	}
	switch first[0] {
	case 'd':
		block := make([]byte, 256<<10)
		for left := size; left > 0; left -= int64(len(block)) {
			if _, err := conn.Write(block); err != nil {
				return
			}
		}
	case 'u':
		_, _ = io.Copy(io.Discard, conn)
		_, _ = conn.Write(first)
	default:
		_, _ = conn.Write(first)
	}
}

func outerAddr() (netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, errors.New("the machine has no network interface with an IPv4 address")
}
