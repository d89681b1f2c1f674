// Command netclient measures a network from inside a sandbox, against the server of
// the test that builds it.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run does one measurement: connect COUNT times, or carry SIZE bytes up or down.
func run(what, addr, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	switch what {
	case "connect":
		return connect(addr, n)
	case "one":
		return one(addr, n)
	case "down", "up":
		return carry(what, addr, n)
	}
	return fmt.Errorf("%s: unknown", what)
}

// one opens connections, one after the other, and tells the median of how long each took
// until a byte was echoed.
func one(addr string, n int) error {
	var times []time.Duration
	for range n {
		took, err := once(addr)
		if err != nil {
			return err
		}
		times = append(times, took)
	}
	slices.Sort(times)
	fmt.Printf("%.3f ms\n", times[n/2].Seconds()*1e3)
	return nil
}

// carry receives or sends bytes on one connection, some at a time.
func carry(what, addr string, n int) error {
	begin := time.Now()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	block := make([]byte, 256<<10)
	if what == "down" {
		if _, err := conn.Write([]byte("d")); err != nil {
			return err
		}
		for left := n; left > 0; {
			got, err := conn.Read(block)
			if err != nil {
				return err
			}
			left -= got
		}
	} else {
		if _, err := conn.Write([]byte("u")); err != nil {
			return err
		}
		for left := n; left > 0; left -= len(block) {
			if _, err := conn.Write(block); err != nil {
				return err
			}
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			return err
		}
	}
	fmt.Printf("%.0f MB/s %s\n", float64(n)/1e6/time.Since(begin).Seconds(), what)
	return nil
}

// connect opens connections, eight at a time, and has a byte echoed on each.
func connect(addr string, n int) error {
	var mu sync.Mutex
	var times []time.Duration
	var all sync.WaitGroup
	var failed error
	for range 8 {
		all.Go(func() {
			for range n / 8 {
				took, err := once(addr)
				mu.Lock()
				times = append(times, took)
				if err != nil {
					failed = err
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	slices.Sort(times)
	fmt.Println(len(times), times[len(times)/2].Microseconds(), times[len(times)*99/100].Microseconds(), times[len(times)-1].Microseconds())
	fmt.Println(histogram(times))
	return failed
}

// histogram counts times, which are sorted, below bounds.
func histogram(times []time.Duration) string {
	var text strings.Builder
	begin := 0
	for _, bound := range []time.Duration{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000} {
		bound *= time.Millisecond
		end, _ := slices.BinarySearch(times, bound)
		fmt.Fprintf(&text, "<%v: %d, ", bound, end-begin)
		begin = end
	}
	fmt.Fprintf(&text, "more: %d", len(times)-begin)
	return text.String()
}

func once(addr string) (time.Duration, error) {
	begin := time.Now()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return time.Since(begin), err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("e")); err != nil {
		return time.Since(begin), err
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return time.Since(begin), err
}
