//! Generates which shard of a cluster takes a call of each method.

use std::fmt::Write as _;

use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, Kind, MessageDescriptor, ReflectMessage, Value,
};

use crate::options::camel;

/// # Panics
/// If a method lacks the option `route`, or the option names a field that is not a text.
pub fn generate(pool: &DescriptorPool) -> String {
    let mut code = String::from(
        "/// Which shard takes a call of each method, by its path, in the order of \
         [`METHODS`](crate::access::METHODS).\n\
         pub const ROUTES: &[(&str, MethodRoute)] = &[\n",
    );
    let ours = |service: &protox::prost_reflect::ServiceDescriptor| {
        service.parent_file().package_name() == "treering.v1"
    };
    let option = pool
        .get_extension_by_name("treering.v1.route")
        .expect("options.proto has no route");
    for service in pool.services().filter(ours) {
        for method in service.methods() {
            let name = method.full_name();
            let options = method.options();
            assert!(
                options.has_extension(&option),
                "{name} needs the option `route`"
            );
            let value = options.get_extension(&option);
            let Value::Message(route) = value.as_ref() else {
                panic!("the option `route` is not a message");
            };
            let fields = conversation_fields(route);
            let paths: Vec<_> = fields
                .iter()
                .map(|field| numbers(&method.input(), field, name))
                .collect();
            let to = destination(route);
            assert!(
                !paths.is_empty() || to != "UNSPECIFIED",
                "{name}: the option `route` is empty"
            );
            let path = format!("/{}/{}", service.full_name(), method.name());
            let _ = writeln!(
                code,
                "({path:?}, MethodRoute {{ conversation: &{}, to: RouteTo::{}, \
                 client_streams: {}, server_streams: {} }}),",
                listed(&paths),
                camel(&to),
                method.is_client_streaming(),
                method.is_server_streaming(),
            );
        }
    }
    code + "];\n"
}

/// Returns the paths of the fields that can name a conversation.
fn conversation_fields(route: &DynamicMessage) -> Vec<String> {
    let value = route.get_field_by_name("conversation").expect("a field");
    let Value::List(paths) = value.as_ref() else {
        panic!("`conversation` of the option `route` is not a list");
    };
    let paths = paths.iter().map(|path| path.as_str().expect("a text"));
    paths.map(str::to_owned).collect()
}

/// Returns the value of `to` without its prefix.
fn destination(route: &DynamicMessage) -> String {
    let field = route.descriptor().get_field_by_name("to").expect("a field");
    let Kind::Enum(choices) = field.kind() else {
        panic!("`to` of the option `route` is not an enum");
    };
    let number = route.get_field(&field).as_enum_number().expect("a number");
    let value = choices.get_value(number).expect("a declared value");
    let text = value.name().strip_prefix("ROUTE_TO_").expect("the prefix");
    text.to_owned()
}

/// Returns the field numbers of a path such as `revisions.conversation_id`.
fn numbers(request: &MessageDescriptor, path: &str, method: &str) -> Vec<u32> {
    let mut message = Some(request.clone());
    let mut numbers = Vec::new();
    let mut is_text = false;
    for name in path.split('.') {
        let field = message.take().and_then(|of| of.get_field_by_name(name));
        let field = field.unwrap_or_else(|| panic!("{method}: there is no field {path}"));
        assert!(!field.is_list(), "{method}: {path} is a list");
        is_text = field.kind() == Kind::String;
        if let Kind::Message(inner) = field.kind() {
            message = Some(inner);
        }
        numbers.push(field.number());
    }
    assert!(is_text, "{method}: {path} is not a text");
    numbers
}

fn listed(paths: &[Vec<u32>]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| format!("&{path:?}")).collect();
    format!("[{}]", paths.join(", "))
}
