"""A page that speaks with its server by a WebSocket, with the standard library only."""
import base64, hashlib, http.server, socketserver, struct, sys

PAGE = b"""<!doctype html>
<meta charset="utf-8"><title>waiting</title>
<link rel="stylesheet" href="style.css">
<h1>A program in a sandbox</h1>
<p id="out">The WebSocket has not answered.</p>
<script src="app.js"></script>
"""
STYLE = b"body { font: 24px sans-serif; margin: 3rem; background: rgb(230, 245, 230) }"
SCRIPT = b"""
const ws = new WebSocket(new URL("ws", location.href.replace(/^http/, "ws")));
ws.onopen = () => ws.send("hello");
ws.onerror = () => { document.title = "failed" };
ws.onmessage = (e) => {
  document.getElementById("out").textContent = "The WebSocket says: " + e.data;
  document.title = "answered " + e.data;
};
"""
FILES = {"/": (PAGE, "text/html"), "/style.css": (STYLE, "text/css"), "/app.js": (SCRIPT, "text/javascript"),
         "/sw.js": (b"onfetch = e => e.respondWith(new Response('caught'));", "text/javascript")}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.echo()
        body, kind = FILES.get(self.path.split("?")[0], (b"", ""))
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", kind or "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Service-Worker-Allowed", "/")
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        left, total = int(self.headers["Content-Length"]), 0
        while left:
            n = len(self.rfile.read(min(left, 1 << 20)))
            left, total = left - n, total + n
        body = str(total).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def echo(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                return
            size = head[1] & 127
            if size == 126:
                size = struct.unpack(">H", self.rfile.read(2))[0]
            mask = self.rfile.read(4)
            text = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size)))
            frame = bytes([head[0]]) + (bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size))
            self.wfile.write(frame + text)
            self.wfile.flush()


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 1024


Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
