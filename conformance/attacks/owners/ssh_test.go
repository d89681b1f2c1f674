package owners_test

import (
	"bytes"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
)

// sshLab is a lab whose server has few connections by SSH.
func sshLab(t *testing.T) *lab {
	t.Helper()
	return newLab(t, labOptions{config: "[ssh]\nlisten = \"127.0.0.1:0\"\nmax_connections = 4"})
}

// sshAddress returns where the server is reached by SSH, and a password for a sandbox.
func (p party) sshAddress(t *testing.T, id string) (address, password string) {
	t.Helper()
	var access struct {
		Host  string `json:"host"`
		Port  int    `json:"port"`
		Token string `json:"token"`
	}
	p.must(t, http.MethodPost, "/v1/sandboxes/"+id+"/ssh", map[string]any{}).decode(t, &access)
	return net.JoinHostPort(access.Host, strconv.Itoa(access.Port)), access.Token
}

// sshInto connects to a sandbox, and returns the output of a command there.
func (p party) sshInto(t *testing.T, id, command string) (string, error) {
	t.Helper()
	address, password := p.sshAddress(t, id)
	client, err := dialSSH(t, address, id, password)
	if err != nil {
		return "", err
	}
	session, err := client.NewSession()
	if err != nil {
		return "", err
	}
	defer session.Close()
	out, err := session.Output(command)
	return strings.TrimSpace(string(out)), err
}

// dialSSH logs in, for as long as the test lasts.
func dialSSH(t *testing.T, address, user, password string) (*ssh.Client, error) {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: 20 * time.Second}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	var banner bytes.Buffer
	c, channels, requests, err := ssh.NewClientConn(conn, address, &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.Password(password)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(), // it is the lab's
		BannerCallback: func(text string) error { banner.WriteString(text); return nil },
	})
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	client := ssh.NewClient(c, channels, requests)
	t.Cleanup(func() { _ = client.Close() })
	return client, nil
}

// TestSSHConnections has an owner keep as many connections as there may be.
func TestSSHConnections(t *testing.T) {
	t.Parallel()
	l := sshLab(t)
	alices, bobs := l.alice.create(t, l.image), l.bob.create(t, l.image)
	for range 6 {
		address, password := l.alice.sshAddress(t, alices)
		_, _ = dialSSH(t, address, alices, password) // some are refused
	}
	for range 2 {
		if out, err := l.bob.sshInto(t, bobs, "echo in"); out != "in" || err != nil {
			t.Errorf("bob's command: %q, %v", out, err)
		}
	}
}

// TestSSHStrangers has connections that never log in, and others that show what is wrong,
// come from bob's own address.
func TestSSHStrangers(t *testing.T) {
	t.Parallel()
	l := sshLab(t)
	bobs := l.bob.create(t, l.image)
	address, _ := l.bob.sshAddress(t, bobs)
	for range 30 {
		if c, err := dialSSH(t, address, bobs, "wrong"); err == nil {
			_ = c.Close()
			t.Fatal("a wrong password is right")
		}
	}
	for range 40 {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	if out, err := l.bob.sshInto(t, bobs, "echo in"); out != "in" || err != nil {
		t.Errorf("bob's command: %q, %v", out, err)
	}
}
