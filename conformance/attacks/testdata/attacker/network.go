package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

func networkAttempts() map[string]func(*attempt) {
	return map[string]func(*attempt){
		"tcp":              tcpToOthers,
		"udp":              udpToOthers,
		"multicast":        multicast,
		"raw-packets":      rawPackets,
		"socket-families":  socketFamilies,
		"netlink":          netlink,
		"interfaces":       interfaces,
		"guest-port":       guestPort,
		"pretend-guest":    pretendGuest,
		"listen-and-shout": listenAndShout,
	}
}

func tcpToOthers(a *attempt) {
	for _, address := range a.TCP {
		a.try("connect to "+address, func() (string, error) { return talk("tcp", address, "from inside") })
	}
	a.control("connect to oneself", func() (string, error) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		go accept(ln, "oneself", func(string) {})
		return talk("tcp", ln.Addr().String(), "control")
	})
}

func talk(network, address, message string) (string, error) {
	conn, err := net.DialTimeout(network, address, 500*time.Millisecond)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(500 * time.Millisecond))
	if _, err := conn.Write([]byte(message)); err != nil {
		return "", err
	}
	b := make([]byte, 1000)
	n, err := conn.Read(b)
	return string(b[:n]), err
}

func udpToOthers(a *attempt) {
	for _, address := range a.UDP {
		a.do("send to "+address, func() error {
			conn, err := net.Dial("udp", address)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("from inside"))
			return err
		})
	}
	a.do("ask a name server", func() error {
		_, err := talk("udp", "127.0.0.53:53", "\x00\x00\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01x\x00\x00\x01\x00\x01")
		return err
	})
}

func multicast(a *attempt) {
	_, port, _ := net.SplitHostPort(a.UDP[0])
	for _, group := range []string{"224.0.0.1", "224.0.0.251", "239.1.2.3", "255.255.255.255", "127.255.255.255", "ff02::1%lo", "ff05::2"} {
		a.do("send to "+group, func() error {
			addr, err := net.ResolveUDPAddr("udp", net.JoinHostPort(group, port))
			if err != nil {
				return err
			}
			conn, err := net.ListenPacket("udp", ":0")
			if err != nil {
				return err
			}
			defer conn.Close()
			raw, err := conn.(*net.UDPConn).SyscallConn()
			if err != nil {
				return err
			}
			_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1) })
			_, err = conn.WriteTo([]byte("from inside"), addr)
			return err
		})
	}
}

// rawPackets sends packets with the source address of another host.
func rawPackets(a *attempt) {
	for _, address := range a.UDP {
		host, portText, _ := net.SplitHostPort(address)
		port, _ := strconv.Atoi(portText)
		ip := net.ParseIP(host).To4()
		if ip == nil {
			continue
		}
		packet := udpPacket(net.IPv4(127, 0, 0, 1).To4(), ip, port)
		a.do("raw to "+address, func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: [4]byte(ip)})
		})
		for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_RAW} {
			a.do(fmt.Sprintf("packet (%d) to %s", kind, address), func() error { return sendPacket(kind, packet) })
		}
	}
	a.do("catch what passes", func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK, 0x0300)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		time.Sleep(300 * time.Millisecond)
		b := make([]byte, 1500)
		for {
			n, _, err := unix.Recvfrom(fd, b, 0)
			if err != nil {
				return err
			}
			a.try("caught", func() (string, error) { return string(b[:n]), nil })
		}
	})
}

func sendPacket(kind int, packet []byte) error {
	fd, err := unix.Socket(unix.AF_PACKET, kind, 0x0008)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if kind == unix.SOCK_RAW {
		packet = append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0}, packet...)
	}
	return unix.Sendto(fd, packet, 0, &unix.SockaddrLinklayer{Protocol: 0x0008, Ifindex: 1, Halen: 6})
}

func udpPacket(from, to net.IP, port int) []byte {
	payload := []byte("from inside")
	b := make([]byte, 28, 28+len(payload))
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(payload)))
	copy(b[12:], from)
	copy(b[16:], to)
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(b[20:], 53)
	binary.BigEndian.PutUint16(b[22:], uint16(port))
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(payload)))
	return append(b, payload...)
}

// socketFamilies tells which kinds of sockets there are.
func socketFamilies(a *attempt) {
	for family := range 50 {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_RAW, unix.SOCK_SEQPACKET, unix.SOCK_RDM} {
			for _, protocol := range []int{0, 1, 6, 16, 132, 255} {
				fd, err := unix.Socket(family, kind, protocol)
				if err != nil {
					continue
				}
				a.try(fmt.Sprintf("%d %d %d", family, kind, protocol), func() (string, error) { return strconv.Itoa(family), nil })
				_ = unix.Close(fd)
			}
		}
	}
	a.do("vsock to the machine", func() error {
		fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		return unix.Connect(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_HOST, Port: 1024})
	})
}

func netlink(a *attempt) {
	for protocol := range 32 {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, protocol)
		if err != nil {
			continue
		}
		a.try(fmt.Sprintf("protocol %d", protocol), func() (string, error) { return strconv.Itoa(protocol), nil })
		// Listen to all groups, ask for everything, and answer to nonsense.
		_ = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: ^uint32(0)})
		for kind := range uint16(150) {
			message := make([]byte, 64)
			binary.NativeEndian.PutUint32(message, 64)
			binary.NativeEndian.PutUint16(message[4:], kind)
			binary.NativeEndian.PutUint16(message[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
			binary.NativeEndian.PutUint32(message[16:], 1)
			_ = unix.Sendto(fd, message, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		}
		for _, length := range []uint32{0, 1, 15, 17, 1 << 31, ^uint32(0)} {
			message := make([]byte, 64)
			binary.NativeEndian.PutUint32(message, length)
			_ = unix.Sendto(fd, message, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		}
		_ = unix.Close(fd)
	}
}

// interfaces takes the network to pieces, which is the sandbox's own.
func interfaces(a *attempt) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		fail(err)
	}
	request := func(name string) *unix.Ifreq {
		r, err := unix.NewIfreq(name)
		if err != nil {
			fail(err)
		}
		return r
	}
	a.try("which there are", func() (string, error) {
		all, err := net.Interfaces()
		text := ""
		for _, i := range all {
			text += i.Name + " "
		}
		return text, err
	})
	a.do("tun", func() error {
		tun, err := unix.Open("/dev/net/tun", unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		r := request("attack0")
		r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		return unix.IoctlIfreq(tun, unix.TUNSETIFF, r)
	})
	down := request("lo")
	down.SetUint16(0)
	a.do("loopback down", func() error { return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, down) })
	a.do("iptables", func() error { return unix.SetsockoptString(fd, unix.SOL_IP, 64, "attack") })
	a.do("forwarding", func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600) })
}

// guestPort knocks where the guest would listen if it listened.
func guestPort(a *attempt) {
	for _, address := range []string{"127.0.0.1", "[::1]", "0.0.0.0", "[::]", "127.1.2.3", "169.254.169.254"} {
		for _, port := range []int{49983, 49982, 80, 8080} {
			a.do(fmt.Sprintf("connect to %s:%d", address, port), func() error {
				conn, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", address, port), 200*time.Millisecond)
				if err != nil {
					return err
				}
				return conn.Close()
			})
		}
	}
	found := ""
	for port := 1; port < 65536; port++ {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			break
		}
		if unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}) == nil {
			found += fmt.Sprint(port, " ")
		}
		_ = unix.Close(fd)
		if port == a.Count {
			break
		}
	}
	a.do("any port", func() error {
		if found == "" {
			return errors.New("none")
		}
		return nil
	})
	a.try("abstract names", func() (string, error) { return read("/proc/net/unix") })
}

// pretendGuest listens where clients expect the guest and keeps what they say.
func pretendGuest(a *attempt) {
	ln, err := net.Listen("tcp", "0.0.0.0:49983")
	a.control("listen on the guest's port", func() (string, error) { return "", err })
	fmt.Println("listening")
	heard := make(chan string, 100)
	go accept(ln, "pretended", func(what string) { heard <- what })
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test has tried
	select {
	case what := <-heard:
		a.try("heard", func() (string, error) { return what, nil })
	default:
	}
}

// listenAndShout answers each client with endless garbage. Count is the
// port.
func listenAndShout(a *attempt) {
	ln, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", a.Count))
	if err != nil {
		fail(err)
	}
	fmt.Println("listening")
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\nX: \x1b[2J\r\n"))
			for err == nil {
				_, err = conn.Write([]byte("X-Header: endless\r\n"))
			}
		}()
	}
}
