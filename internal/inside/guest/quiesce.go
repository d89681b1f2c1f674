package guest

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

// A sandbox can be saved only while nothing of the machine is open in it but the conduit
// itself. So who holds the other end has the guest let go first: a connection to
// orderPort, on which the first byte says what is wanted.
//
//	orderQuiesce     the guest closes all other connections, and answers with four bytes of
//	              length, high byte first, and its settings. A byte back says that they
//	              were received: the guest forgets them and closes the connection.
//	orderContinue  is followed by a Release in the same form. The guest answers with a
//	              byte when it has done all of it.
//
// Between the two nothing may come by the conduit. If anything goes wrong before the
// guest has forgotten its settings, it goes on as if nothing had been.
const (
	orderPort     = 0
	orderQuiesce  = 'h'
	orderContinue = 'r'
	orderDone     = 'd'

	// orderTimeout is how long an order may take.
	orderTimeout = 20 * time.Second
	// maxSettings bounds the guest's settings, which several /init may have filled.
	maxSettings = 16 << 20
)

// Continuation says how a guest goes on that was held.
type Continuation struct {
	// Settings are those that Hold returned, or none: then the guest has no key, and
	// waits for the one who gives it one.
	Settings json.RawMessage `json:"settings,omitempty"`
	// Renew says that this is a copy of another sandbox, and must not have its numbers.
	Renew bool `json:"renew,omitempty"`
}

// savedSettings are settings as they travel.
type savedSettings struct {
	Token   string            `json:"token,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"`
	User    string            `json:"user,omitempty"`
	WorkDir string            `json:"workDir,omitempty"`
}

// Quiesce has the guest behind a connection to OrderMessage's port let go of everything. What
// it returns is what a Release needs for the guest to go on as it was. The guest may be
// hostile: what it says is bounded, and of no use to anybody else.
func Quiesce(conn net.Conn) (json.RawMessage, error) {
	if err := conn.SetDeadline(time.Now().Add(orderTimeout)); err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte{orderQuiesce}); err != nil {
		return nil, err
	}
	settings, err := readSized(conn)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write([]byte{orderDone}); err != nil {
		return nil, err
	}
	// It has forgotten them and closed everything when this ends.
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		return settings, fmt.Errorf("the guest does not let go: %w", err)
	}
	return settings, nil
}

// Continue has a guest go on that was held.
func Continue(conn net.Conn, r Continuation) error {
	if err := conn.SetDeadline(time.Now().Add(orderTimeout)); err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := conn.Write(slices.Concat([]byte{orderContinue}, withSize(data))); err != nil {
		return err
	}
	answer := make([]byte, 1)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if answer[0] != orderDone {
		return errors.New("the guest does not go on")
	}
	return nil
}

// OrderMessage is what goes over the conduit beside a connection for Hold and Continue.
func OrderMessage() []byte { return binary.BigEndian.AppendUint16(nil, orderPort) }

func withSize(data []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...)
}

func readSized(r io.Reader) ([]byte, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > maxSettings {
		return nil, fmt.Errorf("%d bytes of settings are too many", size)
	}
	data := make([]byte, size)
	_, err := io.ReadFull(r, data)
	return data, err
}

// handleOrder carries an order out. It is the conduit's only reader that calls it, so nothing
// else comes in meanwhile.
func (c *conduit) handleOrder(conn net.Conn) {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(orderTimeout)); err != nil {
		return
	}
	order := make([]byte, 1)
	if _, err := io.ReadFull(conn, order); err != nil {
		return // whoever it was has gone
	}
	switch order[0] {
	case orderQuiesce:
		c.quiesceGuest(conn)
	case orderContinue:
		c.continueGuest(conn)
	}
}

func (c *conduit) quiesceGuest(conn net.Conn) {
	c.closeOpen()
	data, err := c.guest.saveSettings()
	if err != nil {
		return
	}
	if _, err := conn.Write(withSize(data)); err != nil {
		return
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return
	}
	clear(data)
	c.guest.forgetSettings()
}

func (c *conduit) continueGuest(conn net.Conn) {
	data, err := readSized(conn)
	if err != nil {
		return
	}
	var r Continuation
	if err := json.Unmarshal(data, &r); err != nil {
		return
	}
	clear(data)
	if err := c.guest.loadSettings(r.Settings); err != nil {
		return
	}
	if r.Renew {
		if err := renewIdentifiers(); err != nil {
			return
		}
	}
	_, _ = conn.Write([]byte{orderDone}) // who went away tries again
}

// saveSettings returns what loadSettings takes.
func (g *Guest) saveSettings() ([]byte, error) {
	s := g.currentSettings()
	return json.Marshal(savedSettings{Token: s.token, Env: s.env, Secrets: s.secrets, User: s.user, WorkDir: s.workDir})
}

// forgetSettings leaves the guest as New has made it, and its memory as far as it can.
func (g *Guest) forgetSettings() {
	g.mu.Lock()
	g.settings = settings{}
	g.mu.Unlock()
	debug.FreeOSMemory() // so that less of them is written down
}

func (g *Guest) loadSettings(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	var s savedSettings
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.settings = settings{token: s.Token, env: s.Env, secrets: s.Secrets, user: s.User, workDir: s.WorkDir}
	return nil
}

// Where a sandbox has a number that no other should have.
const (
	bootIDPath    = "/proc/sys/kernel/random/boot_id"
	bootIDFile    = "/dev/.sandpit-boot-id"
	machineID     = "/etc/machine-id"
	dbusMachineID = "/var/lib/dbus/machine-id"
	machineIDSize = 33 // with the new line
)

// renewIdentifiers gives the sandbox numbers of its own. Those that its files lack stay away.
func renewIdentifiers() error {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return fmt.Errorf("make a boot id: %w", err)
	}
	// What was put there for the sandbox that this is a copy of.
	_ = syscall.Unmount(bootIDPath, syscall.MNT_DETACH)         // there may be none
	if err := os.WriteFile(bootIDFile, id, 0o444); err != nil { //nolint:gosec // as the original
		return fmt.Errorf("make a boot id: %w", err)
	}
	if err := syscall.Mount(bootIDFile, bootIDPath, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("show the boot id: %w", err)
	}
	_ = os.Remove(bootIDFile) // the mount has it
	return renewMachineID()
}

// renewMachineID replaces the id in the files that have one.
func renewMachineID() error {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return fmt.Errorf("make a machine id: %w", err)
	}
	id = slices.DeleteFunc(id, func(b byte) bool { return b == '-' })
	for _, path := range []string{machineID, dbusMachineID} {
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || info.Size() != machineIDSize && info.Size() != machineIDSize-1 {
			continue // none, a link to the other one, or not one that was ever set
		}
		// Not into the old file: the path may have become a link to another one meanwhile.
		err = atomicfile.Write(path, info.Mode().Perm(), id, atomicfile.NoSync("the kernel of the sandbox cannot survive a crash of the machine"))
		if err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	return nil
}
