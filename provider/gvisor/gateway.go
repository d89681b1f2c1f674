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
	gatewayListenFD = 4 // its control socket, which listens already
	gatewayConfigFD = 5 // a file without a name that holds a gatewayConfig
	gatewayLifeFD   = 6 // pipe whose other end the sandbox's engine holds
	gatewayDialFD   = 7 // the dialer's socket, by which it gets connections
)

// gatewayConfig is what a gateway works by. The file outlives the process, so that
// the next one goes on with the rules that were set last.
type gatewayConfig struct {
	Policy sandpit.NetworkPolicy `json:"policy"`
	// Resolvers are set by the reaper, which grants them to the dialer, too.
	Resolvers []netip.AddrPort `json:"resolvers,omitempty"`
	// Roots are authorities, as PEM, that are trusted besides the machine's.
	Roots []byte `json:"roots,omitempty"`
	// Secrets are those that headers refer to.
	Secrets map[string]string `json:"secrets,omitempty"`
	// Authority is a network.Authority with its key. None: no headers were ever set.
	Authority []byte `json:"authority,omitempty"`
}

// ensureAuthority returns what the sandbox is to trust, and makes it when headers are set for
// the first time.
func (c *gatewayConfig) ensureAuthority() (*network.Authority, error) {
	if len(c.Authority) > 0 {
		return network.ParseAuthority(c.Authority)
	}
	if len(c.Policy.Headers) == 0 {
		return nil, nil //nolint:nilnil // there is none, and nobody needs one
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

// gatewayMain is the network of one sandbox: see package network. It has an empty network
// namespace, gives everything else up before the first packet, and gets connections from
// the dialer.
func gatewayMain(args []string) int {
	// What it does to a packet takes less time than waking another thread for it. One
	// processor carries more than a gigabyte each second.
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
	keeper := &gatewayServer{gateway: gateway, config: config}
	go func() {
		defer cancel()
		_ = serveListener(ln, keeper.handleRequest) // the next process takes the calls that are waiting
	}()
	_ = gateway.Run(ctx) // however it ended, the reaper starts another if the sandbox lives
	return 1
}

// openGateway reads what the gateway works by, then locks the door behind itself.
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
		note = "the gateway broke down and was started again, number " + args[0] + "; all connections were lost"
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
		// Half written when the process before was killed. Until somebody sets the
		// rules again, nothing is allowed.
		cfg = gatewayConfig{Policy: sandpit.NetworkPolicy{Online: true, Deny: []string{"0.0.0.0/0", "::/0"}}}
	}
	return cfg, nil
}

// writeGatewayConfig replaces what f holds, in one piece.
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

// gatewayServer answers calls about a gateway.
type gatewayServer struct {
	gateway *network.Gateway

	mu     sync.Mutex // of changes
	config *os.File
}

// decisionsPerReply bounds a reply: a decision takes up to 1 KiB of it.
const decisionsPerReply = 100

func (s *gatewayServer) handleRequest(ctx context.Context, req request, _ []*os.File) (reply, *os.File, error) {
	switch req.Op {
	case opPolicy:
		if req.Policy == nil {
			return reply{}, nil, sandpit.Errorf(sandpit.Invalid, "set the network policy: there is none")
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
		return reply{}, nil, sandpit.Errorf(sandpit.Invalid, "operation %q does not exist", req.Op)
	}
}

// setPolicy writes the rules down first: a process that comes after this one must
// not go by older rules than were promised.
func (s *gatewayServer) setPolicy(p sandpit.NetworkPolicy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg, err := readGatewayConfig(s.config)
	if err != nil {
		return fmt.Errorf("keep the network policy: %w", err)
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
		return fmt.Errorf("keep the network policy: %w", err)
	}
	s.gateway.SetAuthority(authority) // before anybody is to be shown it
	return s.gateway.SetPolicy(p)
}

// addSecrets adds, replaces and, where the value is empty, takes away secrets. They are
// kept in the same way as the rules.
func (s *gatewayServer) addSecrets(secrets map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg, err := readGatewayConfig(s.config)
	if err != nil {
		return fmt.Errorf("keep the network's secrets: %w", err)
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
		return fmt.Errorf("keep the network's secrets: %w", err)
	}
	return s.gateway.SetSecrets(all)
}

// readCertificate is what the sandbox is to trust; none if nothing is.
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
