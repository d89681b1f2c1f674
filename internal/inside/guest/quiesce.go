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

// A sandbox can be saved only while the conduit is its only open connection to the machine. The engine therefore
// orders the guest to quiesce first, on a connection to orderPort whose first byte is the order:
//
//	orderQuiesce   the guest closes all other connections and answers with its settings, after
//	               their length in four bytes, big-endian. A byte back confirms their receipt:
//	               the guest forgets them and closes the connection.
//	orderContinue  is followed by a Continuation in the same form. The guest answers with a
//	               byte when it has applied all of it.
//
// No other connection may come through the conduit between the two. If anything fails before the guest has forgotten
// its settings, the guest continues as before.
const (
	orderPort     = 0
	orderQuiesce  = 'h'
	orderContinue = 'r'
	orderDone     = 'd'

	// orderTimeout is how long an order may take.
	orderTimeout = 20 * time.Second
	// maxSettings bounds the guest's settings, which several calls of /init may have added to, in bytes.
	maxSettings = 16 << 20
)

// Continuation says how a quiesced guest continues.
type Continuation struct {
	// Settings are what Quiesce returned. Without them the guest has no key and waits for /init.
	Settings json.RawMessage `json:"settings,omitempty"`
	// Renew says that this is a copy of another sandbox and needs identifiers of its own.
	Renew bool `json:"renew,omitempty"`
}

// savedSettings is the encoded form of settings.
type savedSettings struct {
	Token   string            `json:"token,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Secrets map[string]string `json:"secrets,omitempty"`
	User    string            `json:"user,omitempty"`
	WorkDir string            `json:"workDir,omitempty"`
}

// Quiesce orders the guest to close its connections and forget its settings. conn is a connection to the port of
// OrderMessage. Quiesce returns the settings that a Continuation needs. The guest may be hostile: the length of its
// answer is bounded, and the answer is used only for this guest.
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
	// The guest closes the connection when it is done.
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		return settings, fmt.Errorf("quiesce the guest: connection not closed: %w", err)
	}
	return settings, nil
}

// Continue orders a quiesced guest to continue.
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
		return errors.New("the guest did not continue")
	}
	return nil
}

// OrderMessage returns the message that goes over the conduit with the connection for Quiesce or Continue.
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
		return nil, fmt.Errorf("settings of %d bytes exceed the limit", size)
	}
	data := make([]byte, size)
	_, err := io.ReadFull(r, data)
	return data, err
}

// handleOrder carries out an order. Only the reader of the conduit calls it, so no other connection comes in
// meanwhile.
func (c *conduit) handleOrder(conn net.Conn) {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(orderTimeout)); err != nil {
		return
	}
	order := make([]byte, 1)
	if _, err := io.ReadFull(conn, order); err != nil {
		return // the sender has disconnected
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
	_, _ = conn.Write([]byte{orderDone}) // the engine tries again if it did not receive this
}

// saveSettings returns the settings in the form that loadSettings reads.
func (g *Guest) saveSettings() ([]byte, error) {
	s := g.currentSettings()
	return json.Marshal(savedSettings{Token: s.token, Env: s.env, Secrets: s.secrets, User: s.user, WorkDir: s.workDir})
}

// forgetSettings returns the guest to the state after New, and frees memory that may still hold the settings.
func (g *Guest) forgetSettings() {
	g.mu.Lock()
	g.settings = settings{}
	g.mu.Unlock()
	debug.FreeOSMemory() // so that the saved memory holds fewer copies of them
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

// Files with identifiers that no two sandboxes should share.
const (
	bootIDPath    = "/proc/sys/kernel/random/boot_id"
	bootIDFile    = "/dev/.sandpit-boot-id"
	machineID     = "/etc/machine-id"
	dbusMachineID = "/var/lib/dbus/machine-id"
	machineIDSize = 33 // including the newline
)

// renewIdentifiers gives the sandbox identifiers of its own. It creates no file that is missing.
func renewIdentifiers() error {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return fmt.Errorf("create a boot ID: %w", err)
	}
	// Remove the mount that the original sandbox made.
	_ = syscall.Unmount(bootIDPath, syscall.MNT_DETACH)         // there may be no mount
	if err := os.WriteFile(bootIDFile, id, 0o444); err != nil { //nolint:gosec // as the original
		return fmt.Errorf("create a boot ID: %w", err)
	}
	if err := syscall.Mount(bootIDFile, bootIDPath, "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("show the boot ID: %w", err)
	}
	_ = os.Remove(bootIDFile) // the mount keeps the file
	return renewMachineID()
}

// renewMachineID replaces the machine ID in the files that have one.
func renewMachineID() error {
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		return fmt.Errorf("create a machine ID: %w", err)
	}
	id = slices.DeleteFunc(id, func(b byte) bool { return b == '-' })
	for _, path := range []string{machineID, dbusMachineID} {
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || info.Size() != machineIDSize && info.Size() != machineIDSize-1 {
			continue // missing, a link to the other file, or never set
		}
		// A new file, because the path may have become a link to another one meanwhile.
		err = atomicfile.Write(path, info.Mode().Perm(), id, atomicfile.NoSync("the kernel of the sandbox cannot survive a crash of the machine"))
		if err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	return nil
}
