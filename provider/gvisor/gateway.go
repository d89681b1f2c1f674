package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network"
	"github.com/sandpit-dev/sandpit/internal/reach/network/dialer"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/confine"
)

// Descriptors that a gateway is started with.
const (
	gatewayLinkFD   = 3
	gatewayListenFD = 4 // its control socket, which already listens
	gatewayConfigFD = 5 // a file without a name that has a gatewayConfig
	gatewayLifeFD   = 6 // a pipe that ends with the sandbox's engine, which has its other end
	gatewayDialFD   = 7 // the dialer's socket, from which it receives connections
)

// gatewayConfig is the configuration of a gateway. Its file outlives the process, so that the next
// process uses the rules that were set last.
type gatewayConfig struct {
	Policy sandpit.NetworkPolicy `json:"policy"`
	// Resolvers are set by the reaper, which also grants them to the dialer.
	Resolvers []netip.AddrPort `json:"resolvers,omitempty"`
	// Roots are authorities, as PEM, that are trusted besides the machine's.
	Roots []byte `json:"roots,omitempty"`
	// Secrets are those that headers refer to.
	Secrets map[string]string `json:"secrets,omitempty"`
	// Authority is a network.Authority with its key. Empty: no headers have been set.
	Authority []byte `json:"authority,omitempty"`
}

// ensureAuthority returns the authority that the sandbox has to trust. It creates one when headers
// are set for the first time. Nil: none is needed.
func (c *gatewayConfig) ensureAuthority() (*network.Authority, error) {
	if len(c.Authority) > 0 {
		return network.ParseAuthority(c.Authority)
	}
	if len(c.Policy.Headers) == 0 {
		return nil, nil //nolint:nilnil // none is needed
	}
	a, err := network.NewAuthority()
	if err != nil {
		return nil, err
	}
	c.Authority, err = a.Encode()
	return a, err
}

// gatewayBounds returns what a gateway may use. It has two descriptors for a moment for each
// connection, and those of the inspector.
func gatewayBounds() confine.Bounds {
	return confine.Bounds{Memory: 1 << 30, MemoryGoal: 256 << 20, Files: 16 << 10}
}

// gatewayMain is the main function of the egress gateway of one sandbox: see package network. It
// has an empty network namespace, gives up everything else before the first packet, and receives
// connections from the dialer.
func gatewayMain(args []string) int {
	// Handling a packet takes less time than waking another thread. One processor handles more
	// than a gigabyte each second.
	runtime.GOMAXPROCS(1)
	for fd := gatewayLinkFD; fd <= gatewayDialFD; fd++ {
		unix.CloseOnExec(fd)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.NewFile(gatewayLifeFD, "life"))
		os.Exit(0) // the sandbox is gone, and all connections with it
	}()
	config := os.NewFile(gatewayConfigFD, "config")
	gateway, err := openGateway(config, args)
	if err != nil {
		return 1
	}
	ln, err := listenerOf(gatewayListenFD)
	if err != nil {
		return 1
	}
	server := &gatewayServer{gateway: gateway, config: config}
	go func() {
		defer cancel()
		_ = serveListener(ln, server.handleRequest) // the next process handles the waiting calls
	}()
	_ = gateway.Run(ctx) // the reaper starts another one while the sandbox runs
	return 1
}

// openGateway reads the configuration and confines this process.
func openGateway(config *os.File, args []string) (*network.Gateway, error) {
	cfg, err := readGatewayConfig(config)
	if err != nil {
		return nil, err
	}
	before := len(cfg.Authority)
	authority, err := cfg.ensureAuthority()
	if err != nil {
		return nil, err
	}
	if len(cfg.Authority) != before {
		if err := writeGatewayConfig(config, cfg); err != nil {
			return nil, err
		}
	}
	roots := append(machineRoots(), cfg.Roots...)
	conn, err := unixConn(os.NewFile(gatewayDialFD, "dial"))
	if err != nil {
		return nil, err
	}
	if err := confine.Gateway(gatewayBounds()); err != nil {
		return nil, err
	}
	note := ""
	if len(args) > 0 && args[0] != "0" {
		note = "the gateway failed and was restarted, number " + args[0] + "; all connections were lost"
	}
	return network.New(network.Config{
		Link: os.NewFile(gatewayLinkFD, "link"), Machine: dialer.NewClient(conn), Policy: cfg.Policy, Resolvers: cfg.Resolvers, Note: note,
		Roots: roots, Secrets: cfg.Secrets, Authority: authority,
	})
}

func readGatewayConfig(f *os.File) (gatewayConfig, error) {
	var cfg gatewayConfig
	info, err := f.Stat()
	if err != nil {
		return cfg, err
	}
	data := make([]byte, info.Size())
	if _, err := f.ReadAt(data, 0); err != nil && !errors.Is(err, io.EOF) {
		return cfg, err
	}
	if err := json.Unmarshal(data, &cfg); err != nil {
		// Partly written when the previous process was killed. Nothing is allowed until the rules
		// are set again.
		cfg = gatewayConfig{Policy: sandpit.NetworkPolicy{Online: true, Deny: []string{"0.0.0.0/0", "::/0"}}}
	}
	return cfg, nil
}

// writeGatewayConfig replaces the content of f in one write. A shorter text is filled with spaces, because
// truncating the file would be a second step, before which this process can be killed.
func writeGatewayConfig(f *os.File, cfg gatewayConfig) error {
	data, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	for int64(len(data)) < info.Size() {
		data = append(data, ' ')
	}
	_, err = f.WriteAt(data, 0)
	return err
}

// gatewayServer handles requests about a gateway.
type gatewayServer struct {
	gateway *network.Gateway

	mu     sync.Mutex // for changes
	config *os.File
}

// decisionsPerReply bounds a reply: a decision has up to 1 KiB.
const decisionsPerReply = 100

func (s *gatewayServer) handleRequest(ctx context.Context, req request, _ []*os.File) (reply, *os.File, error) {
	switch req.Op {
	case opPolicy:
		if req.Policy == nil {
			return reply{}, nil, sandpit.Errorf(sandpit.Invalid, "set the network policy: the policy is missing")
		}
		return reply{}, nil, s.setPolicy(*req.Policy)
	case opDecisions:
		return reply{Decisions: s.gateway.Decisions(req.After, decisionsPerReply)}, nil, nil
	case opRecall:
		s.gateway.Recall(req.Decisions)
		return reply{}, nil, nil
	case opSecrets:
		return reply{}, nil, s.addSecrets(req.Secrets)
	case opTraffic:
		traffic := s.gateway.Stats()
		return reply{Traffic: &traffic}, nil, nil
	case opExplain:
		list, err := s.gateway.Explain(ctx, req.Target)
		return reply{Decisions: list[:min(len(list), decisionsPerReply)]}, nil, err
	case opAuthority:
		certificate, err := s.readCertificate()
		return reply{Authority: certificate}, nil, err
	default:
		return reply{}, nil, sandpit.Errorf(sandpit.Invalid, "unknown operation %q", req.Op)
	}
}

// setPolicy stores the rules before it applies them: a later process must not use older rules than
// the caller was promised.
func (s *gatewayServer) setPolicy(p sandpit.NetworkPolicy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg, err := readGatewayConfig(s.config)
	if err != nil {
		return fmt.Errorf("store the network policy: %w", err)
	}
	if err := validateNetwork(p); err != nil {
		return err
	}
	cfg.Policy = p
	authority, err := cfg.ensureAuthority()
	if err != nil {
		return err
	}
	if err := writeGatewayConfig(s.config, cfg); err != nil {
		return fmt.Errorf("store the network policy: %w", err)
	}
	s.gateway.SetAuthority(authority) // before it is needed
	return s.gateway.SetPolicy(p)
}

// addSecrets adds and replaces secrets, and removes those without a value. They are stored like
// the rules.
func (s *gatewayServer) addSecrets(secrets map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg, err := readGatewayConfig(s.config)
	if err != nil {
		return fmt.Errorf("store the network's secrets: %w", err)
	}
	all := maps.Clone(cfg.Secrets)
	if all == nil {
		all = make(map[string]string, len(secrets))
	}
	maps.Copy(all, secrets)
	if err := network.CheckSecrets(all); err != nil {
		return err
	}
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	cfg.Secrets = all
	if err := writeGatewayConfig(s.config, cfg); err != nil {
		return fmt.Errorf("store the network's secrets: %w", err)
	}
	return s.gateway.SetSecrets(all)
}

// readCertificate returns the certificate that the sandbox has to trust, nil without an authority.
func (s *gatewayServer) readCertificate() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg, err := readGatewayConfig(s.config)
	if err != nil || len(cfg.Authority) == 0 {
		return nil, err
	}
	authority, err := network.ParseAuthority(cfg.Authority)
	if err != nil {
		return nil, err
	}
	return authority.Certificate(), nil
}
